"""CSV as a spreadsheet and a script would read it."""

import csv
import io

import msgspec
import pytest

from loadgen.errors import ResultError
from loadgen.report.csv import csv_report
from loadgen.schema.hardware_result import GpuFigure, GpuStage
from loadgen.schema.result import Result
from tests.report.test_text import result, stage

COLUMNS = """
    run_id started_at state model engine hardware stage label concurrency rate_per_s arrival isl osl measured_s sent
    completed failed unfinished cancelled concurrency_mean input_tokens output_tokens tokens_source requests_per_s
    input_tokens_per_s output_tokens_per_s total_tokens_per_s output_tokens_per_s_per_user
""".split()
LAST = """
    met_limits goodput_share goodput_requests_per_s engine_ttft_mean_ms engine_queue_mean_ms engine_prefill_mean_ms
    engine_preemptions engine_prefix_hit_rate engine_prompt_tokens engine_generation_tokens joules
    joules_per_output_token tokens_per_s_per_w gpu_gfx_percent gpu_memory_percent gpu_power_w
    gpu_temperature_hotspot_c gpu_gfx_clock_mhz client_limited client_why verdicts scheduled unsent
    unsent_longest_wait_s carried_over carried_in carried_failed lost warmup errors failures failures_allowed
    ttft_censored ttft_lower_bounds ttft_from_intended_censored ttft_from_intended_lower_bounds inconclusive
    e2e_inconclusive carried_share tpot_parts tail_share first_wave_streams first_wave_counted first_wave_ttft_p50_ms
    first_wave_ttft_p99_ms step direction ttft_count ttft_from_intended_count tpot_count itl_count chunk_gap_count
    e2e_count normalized_count tflops_per_gpu mfu_percent mfu_precision interactivity_tokens_per_s
    output_tokens_per_s_per_gpu total_tokens_per_s_per_gpu output_tokens_per_s_per_mw usd_per_million_output_tokens
    usd_per_million_total_tokens hbm_gb_per_s_per_gpu engine_requests engine_requests_per_s
    engine_prompt_tokens_per_s engine_generation_tokens_per_s others_running others_requests_per_s
    others_prompt_tokens_per_s others_generation_tokens_per_s engine_ttft_p50_at_least_ms engine_ttft_p50_at_most_ms
    engine_ttft_p99_at_least_ms engine_ttft_p99_at_most_ms engine_tpot_p50_at_least_ms engine_tpot_p50_at_most_ms
    engine_tpot_p99_at_least_ms engine_tpot_p99_at_most_ms canary_sent canary_scores canary_drift canary_perplexity
    canary_answers canary_same canary_agreement gpu_hbm_used_gib hbm_bandwidth_percent sessions_live
    sessions_context_tokens sessions_begun sessions_finished sessions_cut sessions_over_context sessions_failed
    sessions_lost sessions_skipped_s output_tokens_per_s_p25 sessions_e2e_interactivity hits_measured hits_engine
    hits_infinite hits_pool cached_input_tokens_per_s_per_gpu uncached_input_tokens_per_s_per_gpu
""".split()
LAST += [
    f"{latency}_{statistic}"
    for latency in ("answer_ttft", "ttft_first_turn", "ttft_later_turns", "e2e_per_token", "session_time")
    for statistic in ("count", "p50_ms", "p90_ms", "p99_ms")
]
LAST += [
    f"{latency}_{part}"
    for latency in ("answer_ttft", "ttft_first_turn", "ttft_later_turns", "session_time")
    for part in ("censored", "lower_bounds")
]


def rows(*results: Result) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_report(results))))


def test_the_columns_are_a_contract() -> None:
    header = csv_report([result(stage(80))]).partition("\n")[0].split(",")
    assert header[: len(COLUMNS)] == COLUMNS
    assert header[-len(LAST) :] == LAST
    assert header[len(COLUMNS)] == "ttft_mean_ms" and "e2e_p999_ms" in header
    assert len(header) == len(set(header)) == len(COLUMNS) + 7 * 9 + len(LAST)


def test_one_row_a_stage_of_every_run(measured: Result) -> None:
    found = rows(measured, result(stage(80), stage(0)))
    assert [row["run_id"] for row in found] == [measured.run_id, measured.run_id, "r"]
    first, stage_of = found[0], measured.stages[0]
    assert float(first["ttft_p99_ms"]) == stage_of.latency_ms["ttft"].p99
    assert float(first["output_tokens_per_s"]) == stage_of.throughput.output_tokens_per_s
    assert (first["met_limits"], first["concurrency"], first["rate_per_s"]) == ("false", "2", "")


def test_gpu_columns_are_means_over_the_gpus() -> None:
    watts = enumerate((600.0, 700.0))
    gpus = [GpuStage(index=index, name="x", looks=9, power_w=GpuFigure(*[power] * 5)) for index, power in watts]
    (row,) = rows(result(msgspec.structs.replace(stage(80), gpu=gpus)))
    assert (row["gpu_power_w"], row["gpu_gfx_percent"]) == ("650.0", "")


def test_gpu_columns_are_of_the_servers_gpus_where_those_are_known() -> None:
    held = ((True, 150.0, 600.0, 96), (True, 170.0, 700.0, 98), (False, 4.0, 140.0, 0), (False, None, None, 0))
    gpus = [
        GpuStage(
            index=index,
            name="x",
            looks=9,
            of_server=of_server,
            hbm_used_bytes_max=None if used_gib is None else int(used_gib * 1024**3),
            power_w=None if power_w is None else GpuFigure(*[power_w] * 5),
            gfx_percent=GpuFigure(*[activity] * 5),
        )
        for index, (of_server, used_gib, power_w, activity) in enumerate(held)
    ]
    (row,) = rows(result(msgspec.structs.replace(stage(80), gpu=gpus)))
    assert (row["gpu_power_w"], row["gpu_gfx_percent"], row["gpu_hbm_used_gib"]) == ("650.0", "97.0", "160.0")
    (row,) = rows(result(msgspec.structs.replace(stage(80), gpu=gpus[3:])))
    assert (row["gpu_power_w"], row["gpu_hbm_used_gib"], row["hbm_bandwidth_percent"]) == ("", "", "")


def test_nothing_sent_is_nothing_to_write() -> None:
    with pytest.raises(ResultError, match="no stage sent requests"):
        csv_report([result(stage(0))])


def test_no_cell_is_a_formula(hostile: Result) -> None:
    evil = msgspec.structs.replace(hostile, run_id='=HYPERLINK("http://x")\r\n')
    row = rows(evil)[0]
    assert row["run_id"].startswith("'=")
    assert not any(cell.startswith(("=", "+", "@")) for cell in row.values())
    assert not any("\x1b" in cell or "\r" in cell for cell in row.values())
