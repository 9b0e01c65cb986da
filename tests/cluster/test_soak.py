# SPDX-License-Identifier: Apache-2.0
"""A short soak; ``make soak`` runs a hundred times as much.

With ``--nodes 2`` the actors are on two nodes, and the graphs cross them.
"""

from __future__ import annotations

import faulthandler

import pytest

from tests.cluster.nodes import is_spread
from tests.soak.soak import Soak

pytestmark = pytest.mark.usefixtures("ray_session")

# For a hang that the soak cannot see: long after its own guard.
BACKSTOP_S = 900


@pytest.fixture
def backstop():
    faulthandler.dump_traceback_later(BACKSTOP_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.full
@pytest.mark.usefixtures("backstop")
def test_everything_random_and_ten_deaths_lose_and_spoil_nothing(dice):
    """Each result against plain Python, each ref accounted for, nothing left in any process."""
    lines: list[str] = []
    soak = Soak(dice.randrange(10**6), executions=2000, kills=10, say=lines.append)
    soak.run()
    done = soak.accounts
    assert done["executions"] >= 2000 and done["kills"] >= 10
    # It has been in all of these places, or it shows less than it says. (Whether results are asked
    # for when their graph is closed is a matter of moments: `make soak` has hundreds of them.)
    accounts = ["right", "user errors", "died", "dropped", "ordinary calls"]
    accounts += ["versions of weights", "kills of readers"]
    if is_spread():
        accounts += ["graphs over nodes", "kills of hosts"]
    for account in accounts:
        assert done[account], account
