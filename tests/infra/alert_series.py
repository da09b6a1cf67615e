"""Series of health and of faults, by name: one sample a minute, as promtool writes them."""

from __future__ import annotations

DAY = 86_400
EDGE = 'job="skerry-edge"'
FIRST, BETWEEN = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"


def histogram(name: str, labels: str, *buckets: tuple[str, int]) -> dict[str, str]:
    """Return the series of a model's latencies; each bucket grows by so many a minute."""
    grown = [*buckets, ("+Inf", buckets[-1][1])]
    return {
        f'{name}_bucket{{{labels}, model_name="m", le="{bound}"}}': f"0+{count}x40"
        for bound, count in grown
    }


FAULTS: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str]]] = {
    "SkerryDown": (
        {'up{job="skerry-edge", instance="i"}': "0x40"},
        {'up{job="skerry-edge", instance="i"}': "1x40", 'up{job="other", instance="j"}': "0x40"},
        {"job": "skerry-edge", "instance": "i"},
    ),
    "SkerryErrors": (
        {'skerry_http_requests_total{instance="i", status="200"}': "0+95x40",
         'skerry_http_requests_total{instance="i", status="503"}': "0+5x40"},
        {'skerry_http_requests_total{instance="i", status="200"}': "0+99x40",
         'skerry_http_requests_total{instance="i", status="429"}': "0+99x40",
         'skerry_http_requests_total{instance="i", status="503"}': "0+1x40"},
        {"instance": "i"},
    ),
    "SkerryModelWithoutNodes": (
        {'skerry_model_nodes{instance="i", model_name="m", state="up"}': "0x40",
         'skerry_model_nodes{instance="j", model_name="m", state="up"}': "0x40"},
        {'skerry_model_nodes{instance="i", model_name="m", state="up"}': "0x40",
         'skerry_model_nodes{instance="j", model_name="m", state="up"}': "1x40",
         'skerry_model_nodes{instance="i", model_name="asleep", state="up"}': "0x40",
         'skerry_control_models_asleep{instance="control", model_name="asleep"}': "1x40"},
        {"model_name": "m"},
    ),
    "SkerryModelNotFound": (
        {'skerry_generation_errors_total{instance="i", code="model_not_found"}': "0+9x40"},
        {'skerry_generation_errors_total{instance="i", code="model_not_found"}': "0+3x40"},
        {"instance": "i"},
    ),
    "SkerryFull": (
        {'skerry_generation_errors_total{model_name="m", code="overloaded"}': "0+9x40"},
        {'skerry_generation_errors_total{model_name="m", code="overloaded"}': "0+3x40"},
        {"model_name": "m"},
    ),
    "SkerrySlowFirstToken": (
        histogram(FIRST, EDGE, ("2", 90), ("4", 100)),
        histogram(FIRST, EDGE, ("2", 99), ("4", 100)),
        {"model_name": "m"},
    ),
    "SkerrySlowTokens": (
        histogram(BETWEEN, EDGE, ("0.5", 97), ("1", 99)),
        histogram(BETWEEN, EDGE, ("0.5", 199), ("1", 200)),
        {"model_name": "m"},
    ),
    "SkerryResumes": (
        {'skerry_resumes_total{model_name="m", kind="exact"}': "0+2x40"},
        {'skerry_resumes_total{model_name="m", kind="exact"}': "0+1x20 20x20"},
        {"model_name": "m"},
    ),
    "SkerryInexactResumes": (
        {'skerry_resumes_total{model_name="m", kind="best-effort"}': "0x25 1x15"},
        {'skerry_resumes_total{model_name="m", kind="best-effort"}': "0 1x39"},
        {"model_name": "m"},
    ),
    "SkerryNodeFar": (
        {'skerry_node_rtt_seconds{node="n", instance="i"}': "0.6x40"},
        {'skerry_node_rtt_seconds{node="n", instance="i"}': "0.3x40"},
        {"node": "n", "instance": "i"},
    ),
    "SkerryPoolDegraded": (
        {'skerry_control_phase{kind="pool", id="p", phase="degraded"}': "1x40"},
        {'skerry_control_phase{kind="pool", id="p", phase="degraded"}': "0x40",
         'skerry_control_phase{kind="pool", id="p", phase="ready"}': "1x40"},
        {"kind": "pool", "id": "p"},
    ),
    "SkerryNoNodes": (
        {'skerry_control_pool_nodes{pool="p", state="ready"}': "0x40",
         'skerry_control_pool_nodes{pool="p", state="desired"}': "2x40"},
        {'skerry_control_pool_nodes{pool="p", state="ready"}': "0x40",  # scaled to none
         'skerry_control_pool_nodes{pool="p", state="desired"}': "0x40"},
        {"pool": "p"},
    ),
    "SkerryCrashLoop": (
        {'skerry_process_restarts_total{id="p"}': "0+1x40"},
        {'skerry_process_restarts_total{id="p"}': "0 0 1 2 2x36"},  # drained twice
        {"id": "p"},
    ),
    "SkerryControlBehind": (
        {'skerry_control_behind_seconds{instance="control"}': "90x40"},
        {'skerry_control_behind_seconds{instance="control"}': "0.5x40"},
        {"instance": "control"},
    ),
    "SkerryCertificateExpires": (
        {'skerry_certificate_end_timestamp_seconds{use="tls", name="edge"}': f"{6 * DAY}x40"},
        {'skerry_certificate_end_timestamp_seconds{use="tls", name="edge"}': f"{30 * DAY}x40",
         'skerry_certificate_end_timestamp_seconds{use="machine", name="m"}': f"{DAY // 2}x40"},
        {"use": "tls", "name": "edge"},
    ),
    "SkerryDiskFull": (
        {'skerry_disk_free_bytes{instance="i"}': "4x40",
         'skerry_disk_bytes{instance="i"}': "100x40"},
        {'skerry_disk_free_bytes{instance="i"}': "40x40",
         'skerry_disk_bytes{instance="i"}': "100x40"},
        {"instance": "i"},
    ),
    "SkerryLoopLag": (
        {'skerry_event_loop_late_seconds_sum{instance="i"}': "0+6x40"},  # of each 60 s
        {'skerry_event_loop_late_seconds_sum{instance="i"}': "0+1x40"},
        {"instance": "i"},
    ),
    "SkerryEngineHangs": (
        {'vllm:num_requests_running{instance="i", model_name="m"}': "1x40",
         'skerry_engine_steps_total{instance="i", model_name="m"}': "7x40"},
        {'vllm:num_requests_running{instance="i", model_name="m"}': "0x40",
         'skerry_engine_steps_total{instance="i", model_name="m"}': "7x40"},
        {"instance": "i", "model_name": "m"},
    ),
    "SkerryQueueGrows": (
        {'vllm:num_requests_waiting{instance="i", model_name="m"}': "17x40"},
        {'vllm:num_requests_waiting{instance="i", model_name="m"}': "16x40"},
        {"instance": "i", "model_name": "m"},
    ),
    "SkerryMemoryFull": (
        {'vllm:kv_cache_usage_perc{instance="i", model_name="m"}': "0.96x40"},
        {'vllm:kv_cache_usage_perc{instance="i", model_name="m"}': "0.94x40"},
        {"instance": "i", "model_name": "m"},
    ),
    "SkerryPreemptions": (
        {'vllm:num_preemptions_total{instance="i", model_name="m"}': "0+36x40"},
        {'vllm:num_preemptions_total{instance="i", model_name="m"}': "0+24x40"},
        {"instance": "i", "model_name": "m"},
    ),
    "SkerryHandoversLost": (
        {'skerry_handovers_total{instance="i", model_name="m", outcome="lost"}': "0+1x40",
         'skerry_handovers_total{instance="i", model_name="m", outcome="whole"}': "0+9x40"},
        {'skerry_handovers_total{instance="i", model_name="m", outcome="lost"}': "0+1x40",
         'skerry_handovers_total{instance="i", model_name="m", outcome="whole"}': "0+99x40"},
        {"instance": "i", "model_name": "m"},
    ),
    "SkerryRegionLeft": (
        {'skerry_dns_region_up{instance="d", region="fra"}': "0x40"},
        {'skerry_dns_region_up{instance="d", region="fra"}': "1x40"},
        {"instance": "d", "region": "fra"},
    ),
    "SkerryDnsSlow": (
        {'skerry_dns_fast_path{instance="d"}': "0x40"},
        {'skerry_dns_fast_path{instance="d"}': "1x40"},
        {"instance": "d"},
    ),
    "SkerryDnsLosesQueries": (
        {'skerry_dns_unanswered_total{instance="d", reason="lost"}': "0+90x40"},
        {'skerry_dns_unanswered_total{instance="d", reason="lost"}': "0+30x40",
         'skerry_dns_unanswered_total{instance="d", reason="limited"}': "0+900x40"},
        {"instance": "d"},
    ),
}  # fmt: skip
"""Of each alert: the fault, at which it fires after half an hour; health, at which none does; and
what it is about."""
