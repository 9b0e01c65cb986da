# SPDX-License-Identifier: Apache-2.0
"""Other libraries on rcg. A folder is named after its library, which only its users import."""
