# SPDX-License-Identifier: Apache-2.0
"""Looking at running graphs: reports, statistics, profiles.

``report``, ``statistics``, ``profiler`` (recording profiles). They use nodes and do not know the
driver.
"""
