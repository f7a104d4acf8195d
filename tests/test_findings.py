"""The tests that hold the findings D1 to D13: the found case and others of its kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FINDINGS = {
    "D1 programs of clients that grow or backtrack": (
        "e2e/test_doubling.py::test_a_program_that_doubles_does_not_grow_the_server",
        "structured/test_lark_reading.py::test_grammars_of_doubling_paths_end",
        "test_patterns.py::test_no_pattern_has_repeats_that_meet",
        "test_patterns.py::test_a_text_without_the_expected_call_is_read_to_its_end",
        "reader/test_documents.py::test_comments_without_html_are_text",
    ),
    "D2 one client's long work before the work of others": (
        "reader/test_shares.py::test_the_refusal_of_work_beyond_its_share_is_remembered",
        "reader/test_shares.py::test_work_of_one_kind_waits_for_no_other_kind",
        "reader/test_shares.py::test_a_picture_waits_for_no_document",
        "reader/test_shares.py::test_one_client_never_keeps_the_work_of_another_waiting",
    ),
    "D3 an assertion of the engine as the only bound": (
        "api/exchanges/empty_inputs.txt::POST /api/embed",
        "api/exchanges/empty_inputs.txt::POST /v1/embeddings",
        "api/exchanges/empty_inputs.txt::POST /embedding",
    ),
    "D4 a model in another state than the request needs": (
        "api/test_model_states.py::test_a_route_answers_waits_or_gives_a_reason",
        "api/test_model_states.py::test_sockets_and_rows_of_batches_have_the_same_status",
        "api/test_model_states.py::test_unloading_ends_a_load_and_ignores_an_unloaded_model",
        "e2e/test_model_states.py::test_a_sleeping_model_wakes_and_a_loading_one_is_waited_for",
        "e2e/test_model_states.py::test_a_restarting_engine_is_waited_for",
        "e2e/test_model_states.py::test_files_that_cannot_be_read_or_are_removed_are_named",
    ),
    "D5 the wall clock decides what lives": (
        "jobs/test_stores.py::test_a_process_keeps_its_lease_when_the_clock_is_set",
        "jobs/test_stores.py::test_the_lease_of_a_dead_process_is_free_at_once",
        "jobs/test_stores.py::test_the_lease_of_another_machine_runs_out_unless_it_is_renewed",
    ),
    "D6 the less likely of two alternatives is reported (each token is the chosen one once)": (
        "api/test_rendering.py::test_the_likeliest_of_several_tokens_with_one_text_counts",
    ),
    "D7 a process ends while it starts (its load, its measurement, its imports)": (
        "engine_client/test_sleeping.py::test_a_model_that_is_unloaded_while_it_loads_ends_without_a_traceback",
        "e2e/test_process.py::test_sighup_while_the_server_imports_does_not_end_it",
        "e2e/test_cli.py::test_a_signal_during_imports_ends_a_command_silently",
    ),
    "D8 names that no file can have, such as one with NUL": (
        "model_source/test_resolve.py::test_malformed",
        "model_source/test_resolve.py::test_an_invalid_file_name_in_a_listing_is_skipped",
        "http/test_parse.py::test_a_name_of_a_client_is_shown_in_part",
    ),
    "D9 a hub that lies": (
        "model_source/test_resolve.py::test_more_than_was_announced_is_not_stored",
        "model_source/test_resolve.py::test_an_invalid_hash_does_not_name_a_file",
        "model_source/test_resolve.py::test_an_invalid_file_name_in_a_listing_is_skipped",
    ),
    "D10 names and objects of other keys": (
        "api/test_foreign_objects.py::test_another_keys_id_in_the_path_is_missing",
        "api/test_foreign_objects.py::test_another_keys_id_in_the_body_is_missing",
        "api/test_foreign_objects.py::test_lists_and_errors_name_no_objects_of_other_keys",
        "api/exchanges/health.txt::A probe names what its key may use",
    ),
    "D11 a server that can never serve keeps running": (
        "cli/test_bad_starts.py::test_errors_found_when_the_model_is_read",
        "models/test_keeper.py::test_a_model_that_can_never_be_loaded_is_not_retried",
        "models/test_memory_budget.py::test_never_means_that_unloading_all_others_does_not_help",
    ),
    "D12 a missing library is reported as a damaged model": (
        "e2e/test_process.py::test_an_unloadable_llama_cpp_is_not_blamed_on_the_model",
        "e2e/test_process.py::test_a_command_reports_that_llama_cpp_cannot_be_loaded",
        "engine_client/test_hang_detector.py::test_what_an_exit_status_means",
    ),
    "D13 a name that is not an option": (
        "config/test_unknown_variables.py::test_a_name_that_is_not_an_option_ends_the_start",
        "config/test_unknown_variables.py::test_names_of_kubernetes_and_other_programs_pass",
        "config/test_unknown_variables.py::test_a_misspelt_secret_ends_the_start",
    ),
}


@pytest.mark.parametrize("finding", FINDINGS)
def test_the_tests_of_a_finding_exist(finding: str) -> None:
    for place in FINDINGS[finding]:
        path, _, name = place.partition("::")
        text = (Path(__file__).parent / path).read_text()
        assert name in text if " " in name else re.search(rf"def {name}\(", text), place
