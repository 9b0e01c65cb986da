# SPDX-License-Identifier: Apache-2.0
"""How a release is made and tried: wheels, sdist, SBOM, and the versions rcg works with."""
