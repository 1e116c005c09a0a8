"""`python -m worker_service.export`: writes the model of a checkpoint, loads it, and compares its predictions.

Reads a `psfleet.checkpoint.versions.Request` on standard input, and writes a `Verdict` to a file.
"""

from __future__ import annotations

from pathlib import Path

from psfleet.checkpoint import export, versions
from psfleet.checkpoint.location import parse
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.recorded_program import recorded_program
from psfleet.checkpoint.table_specs import require_row_numbers
from psfleet.job.program import KerasProgram, load_program
from psfleet.report.verdict import end_at_once, write_verdict
from psfleet.service.parent import end_with_parent
from psfleet.tf.program_data import built_model, first_batch
from worker_service import graph_export
from worker_service.keras_export import compared, inputs_of, keras_file, saved_model


def write(request: versions.Request, folder: Path) -> str:
    """Writes the files of a version into a folder that exists, and verifies them.

    Returns:
        What was verified, in one line.

    Raises:
        UsageError: The checkpoint records no program, or one whose model cannot be exported; the disk is full.
        ProgramError: The program failed, its model cannot be saved or loaded, or predicts other values then.
        BadJobError: The variables of the program's model differ from the checkpoint's.
    """
    checkpoint = read_manifest(parse(request.checkpoint))
    require_row_numbers(checkpoint, f"--format {request.kind}")
    job, program_folder = recorded_program(checkpoint)
    program = load_program(job, program_folder)
    if not isinstance(program, KerasProgram):
        return graph_export.write(checkpoint, program, job, folder, request.kind)
    model = built_model(program, job)
    export.assign(checkpoint, model)
    batch, spec = first_batch(program, job)
    x = inputs_of(model, batch[0])
    if request.kind == versions.LITERT:
        # Imported here because the other formats do not need its package.
        from worker_service import litert_export

        return litert_export.write(model, x, folder, program, job, request)
    save = keras_file if request.kind == versions.KERAS else saved_model
    return compared(model, save(model, spec[0], folder, job), x, job)


def main() -> None:
    """Writes into the folder of the first argument; the second one names the file of the verdict."""
    write_verdict(lambda request, folder: write(versions.Request.model_validate_json(request), Path(folder)))


if __name__ == "__main__":
    end_with_parent()
    main()
    end_at_once()
