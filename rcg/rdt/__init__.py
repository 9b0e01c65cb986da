# SPDX-License-Identifier: Apache-2.0
"""Direct transport of tensors in ordinary calls: tensors that stay where they were made."""
