"""Reads the elements of a data set from one loader, by tf.data service, until the loader is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import tensorflow as tf
from tensorflow.python.eager.cancellation import CancellationManager

from psfleet.errors import LostPeerError, ProgramError
from psfleet.job.job import Job
from psfleet.job.user_code import user_code
from psfleet.tf.batching import padding_explained
from worker_service.broken_records import broken_file_named
from worker_service.loader.definitions import PREFIX
from worker_service.loader_watch import LoaderWatch
from worker_service.random_data import calls_python

END_SECS = 2.0
"""How long after an error of a connection the loader's end may be found; without it, the error is of the program."""
OF_CONNECTION = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.NotFoundError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)


_lost: list[object] = []
"""The iterators of lost loaders: the deletion of one waits for its loader, which may be frozen."""


class LoaderLostError(LostPeerError):
    """The loader of a stream of batches has died, or does not answer."""


class LoaderChangedError(LoaderLostError):
    """The worker's loader is another one, because loaders were added."""


def check_loadable(examples: tf.data.Dataset, job: Job, what: str) -> None:
    """Raises ProgramError if the examples that are read in `what` call Python."""
    if calls_python(examples):
        raise ProgramError(
            f"program {job.program!r}: {what}: the data set calls Python (from_generator, py_function or "
            "numpy_function), which a loader cannot; expected TensorFlow's operations, or input.from: worker"
        )


@dataclass(frozen=True)
class LoaderStream:
    """The elements of one data set.

    Attributes:
        dataset: Sent to the loader as its graph.
        what: What this process is doing when the data set raises.
        shared: A name: all workers that read with it get disjoint elements of one iteration, whose graph is that of
            the first of them. Empty: this worker gets all elements.
    """

    dataset: tf.data.Dataset
    job: Job
    what: str
    shared: str = ""

    def named(self, shared: str) -> LoaderStream:
        """The same stream, shared under another name."""
        return replace(self, shared=shared)

    def elements(
        self, watch: LoaderWatch, cancellation: CancellationManager | None = None
    ) -> Iterator[Sequence[tf.Tensor]]:
        """The tensors of each element, in `tf.nest.flatten` order.

        Args:
            watch: Of the loader.
            cancellation: Ends the wait for an element, which raises ProgramError then.

        Raises:
            ProgramError: The data set raised.
            LoaderLostError: The loader was lost.
        """
        cancellation = cancellation or CancellationManager()
        with self._errors(watch), tf.device("/cpu:0"):
            distributed = self._distributed(f"grpc://{watch.loader.dispatcher.data}")
            iterator = iter(distributed)
            specs = tf.nest.flatten(distributed.element_spec)
            dtypes, shapes = [spec.dtype for spec in specs], [spec.shape for spec in specs]

            def following() -> list[tf.Tensor]:
                return tf.raw_ops.IteratorGetNext(
                    iterator=iterator._iterator_resource, output_types=dtypes, output_shapes=shapes
                )

            next_element = cancellation.get_cancelable_function(
                tf.function(following, autograph=False).get_concrete_function()
            )

        def end() -> None:
            _lost.append(iterator)
            cancellation.start_cancel()

        watch.on_end(end)
        while True:
            with broken_file_named(self.dataset), self._errors(watch):
                try:
                    element = next_element()
                except tf.errors.OutOfRangeError:
                    return
            yield element

    def _distributed(self, url: str) -> tf.data.Dataset:
        service = tf.data.experimental.service
        if not self.shared:
            return self.dataset.apply(service.distribute(service.ShardingPolicy.OFF, service=url, compression=None))
        distribute = service.distribute(
            service.ShardingPolicy.OFF, service=url, job_name=self.shared, max_outstanding_requests=1, compression=None
        )
        # By default TensorFlow reads up to 16 elements ahead, which would be lost with this process.
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.inject_prefetch = False
        return self.dataset.apply(distribute).with_options(options)

    @contextmanager
    def _errors(self, watch: LoaderWatch) -> Iterator[None]:
        """Converts an error of the block: of the connection if the loader is lost, or else of the program.

        A process that stands still between sending a data set and reading from it finds its definition removed.
        """
        try:
            with padding_explained(), user_code(self.job, self.what):
                yield
        except ProgramError as error:
            if isinstance(error.__cause__, tf.errors.NotFoundError) and f"/{PREFIX}" in str(error.__cause__):
                raise LoaderLostError(f"{watch.who} keeps the data set no longer") from error
            if isinstance(error.__cause__, OF_CONNECTION) and watch.has_ended(END_SECS):
                raise LoaderLostError(f"{watch.who} is lost") from error
            raise
