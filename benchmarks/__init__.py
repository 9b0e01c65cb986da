# SPDX-License-Identifier: Apache-2.0
"""The experiments of rcg's repository, run from its root: `python -m benchmarks`.

They stand beside the rows of `rcg.bench`, use what it measures with, and are not part of the
package. An experiment has actors of its own, or uses those of the rows in another way.
"""
