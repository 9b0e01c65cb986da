# SPDX-License-Identifier: Apache-2.0
"""Looking at running graphs: reports, statistics, profiles.

``report`` (with statistics), ``profiler`` (recording profiles), ``transfers`` (of tensors by
reference, for profiles). They use nodes and do not know the driver.
"""
