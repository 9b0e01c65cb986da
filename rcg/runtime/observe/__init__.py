# SPDX-License-Identifier: Apache-2.0
"""Looking at running graphs: reports, statistics, profiles.

``report`` (with statistics), ``profiler`` (recording profiles), ``transfers`` (of tensors by
reference, for profiles). They use nodes and do not know the driver.

While a graph runs: ``live`` (samples, with a row for each actor),
``drivers`` (the graphs of other processes of this user).
"""
