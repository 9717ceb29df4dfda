"""Every alert fires at its fault and is silent in health; evaluated by promtool, where it is."""

import pytest

from tests.promql import alert_rules, alerts_of, prometheus

pytestmark = pytest.mark.skipif(prometheus("promtool") is None, reason="promtool is not installed")

EVERY_S = 10
P = "ray_sessions_actor_"

Series = dict[str, str]
"""Name and labels of a series, and its values each ten seconds as promtool writes them."""


def buckets(name: str, slow: bool, labels: str = "") -> Series:
    """A histogram of ten observations a minute: all fast, or all above the last bound but one."""
    comma = "," if labels else ""
    values = {"0.1": "0x200" if slow else "0+10x200", "60": "0+10x200", "+Inf": "0+10x200"}
    return {f'{P}{name}_bucket{{{labels}{comma}le="{le}"}}': v for le, v in values.items()}


# In health, with something going on: what every fault below is a change of.
HEALTH: Series = {
    f'{P}lease_remaining_ratio{{node="n1"}}': "0.9 0.8 1x200",
    f'{P}lease_remaining_ratio{{node="n2"}}': "0.76x200",
    f"{P}leases_lapsed_total": "0x200",
    f'{P}nodes_gone_total{{outcome="lost"}}': "0x200",
    f'{P}nodes_gone_total{{outcome="drained"}}': "0x100 1x100",
    f'{P}gate_broken_total{{node="n1",type="OutputGateBrokenError"}}': "0x200",
    f'{P}gate_broken_total{{node="n1",type="StaleEpochError"}}': "0+1x200",
    f"{P}owners_lost_total": "0x100 1x100",
    f"{P}router_start_time_seconds": "1000x200",
    f'{P}calls_total{{method="append_message",outcome="ok"}}': "0+1000x200",
    f'{P}calls_total{{method="append_message",outcome="error"}}': "0+1x200",
    **buckets("call_seconds", False, 'access="write"'),
    f'{P}activations_failed_total{{type="StorageError"}}': "0x200",
    f"{P}no_capacity_total": "0x200",
    **buckets("actor_wait_seconds", False),
    f'{P}actors_started_total{{outcome="error"}}': "0x200",
    f'{P}quota_used_ratio{{node="n1"}}': "0.2x200",
    f'{P}disk_free_bytes{{node="n1",role="router"}}': "600000000000x200",
    f'{P}disk_size_bytes{{node="n1",role="router"}}': "1000000000000x200",
    f'{P}migrations_total{{outcome="failed"}}': "0x200",
    f'{P}migrations_total{{outcome="moved"}}': "0+1x200",
    **buckets("migration_stall_seconds", False),
    f'{P}replication_lag_seconds{{node="n1"}}': "0.1x200",
    f'{P}replica_syncs_total{{node="n1",outcome="error"}}': "0x200",
}

# What a fault does to the series, from the 50th sample on.
FAULTS: dict[str, Series] = {
    "SessionsActorLeaseLow": {f'{P}lease_remaining_ratio{{node="n2"}}': "0.76x50 0.2x100"},
    "SessionsActorLeaseLapsed": {f"{P}leases_lapsed_total": "0x50 1x100"},
    "SessionsActorNodeLost": {f'{P}nodes_gone_total{{outcome="lost"}}': "0x50 1x100"},
    "SessionsActorGateBroken": {
        f'{P}gate_broken_total{{node="n1",type="OutputGateBrokenError"}}': "0x50 1x100"
    },
    "SessionsActorOwnersLost": {f"{P}owners_lost_total": "0x50 10x100"},
    "SessionsActorRouterDown": {f"{P}router_start_time_seconds": "1000x50 stale"},
    "SessionsActorRouterRestarting": {
        f'{P}router_start_time_seconds{{WorkerId="a"}}': "1x5 stale",
        f'{P}router_start_time_seconds{{WorkerId="b"}}': "_x10 2x5 stale",
        f'{P}router_start_time_seconds{{WorkerId="c"}}': "_x20 3x200",
    },
    "SessionsActorErrorRate": {
        f'{P}calls_total{{method="append_message",outcome="error"}}': "0x10 0+100x200"
    },
    "SessionsActorWritesSlow": dict(buckets("call_seconds", True, 'access="write"')),
    "SessionsActorActivationsFailing": {
        f'{P}activations_failed_total{{type="StorageError"}}': "0x30 0+1x200"
    },
    "SessionsActorNoCapacity": {f"{P}no_capacity_total": "0x50 1x100"},
    "SessionsActorActorWait": dict(buckets("actor_wait_seconds", True)),
    "SessionsActorActorStartsFail": {f'{P}actors_started_total{{outcome="error"}}': "0x50 9x100"},
    "SessionsActorQuotaNearlyFull": {f'{P}quota_used_ratio{{node="n1"}}': "0.2x10 0.95x200"},
    "SessionsActorDiskFilling": {
        f'{P}disk_free_bytes{{node="n1",role="router"}}': "600000000000-1000000000x200"
    },
    "SessionsActorMigrationFailing": {f'{P}migrations_total{{outcome="failed"}}': "0x50 1x100"},
    "SessionsActorMigrationStalls": dict(buckets("migration_stall_seconds", True)),
    "SessionsActorReplicationLag": {f'{P}replication_lag_seconds{{node="n1"}}': "0x10 0+10x200"},
    "SessionsActorReplicaSyncsFail": {
        f'{P}replica_syncs_total{{node="n1",outcome="error"}}': "0x30 0+1x200"
    },
}

# A process that is new when it happens begins its counter above 0.
BORN_BROKEN: Series = {
    f'{P}gate_broken_total{{node="n1",type="OutputGateBrokenError",WorkerId="new"}}': "_x50 1x100"
}


AT_S = 600


def changed(alert: str) -> Series:
    """Return the series in which a fault happens."""
    fault = FAULTS[alert]
    series = {name: fault.get(name, values) for name, values in {**HEALTH, **fault}.items()}
    if alert == "SessionsActorRouterRestarting":
        del series[f"{P}router_start_time_seconds"]
    return series


CASES: dict[str, tuple[Series, set[str]]] = {
    "health": (HEALTH, set()),
    "born broken": ({**HEALTH, **BORN_BROKEN}, {"SessionsActorGateBroken"}),
    **{alert: (changed(alert), {alert}) for alert in FAULTS},
}


@pytest.fixture(scope="module")
def fired() -> dict[str, set[str]]:
    """What fires ten minutes in, in each case: one run of promtool for all."""
    found = alerts_of([series for series, _ in CASES.values()], EVERY_S, AT_S)
    return {
        case: {name for name, state in states if state == "firing"}
        for case, states in zip(CASES, found, strict=True)
    }


def test_every_alert_has_its_fault() -> None:
    assert set(FAULTS) == {rule["alert"] for rule in alert_rules()}


@pytest.mark.parametrize("case", CASES)
def test_an_alert_fires_at_its_fault_alone(case: str, fired: dict[str, set[str]]) -> None:
    assert fired[case] == CASES[case][1]
