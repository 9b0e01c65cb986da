# SPDX-License-Identifier: Apache-2.0
"""Pictures of plans and traces as SVG files: static, light and dark."""
