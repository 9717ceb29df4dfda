"""The blocking methods of LangGraph's checkpointer, each by its async one.

They wait in the thread that calls them, while a loop of its own does the work: they are safe beside
a running event loop, which they block like any other call that waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..sync import SyncStream, shared_loop
from .requirement import require

require("langgraph.checkpoint", package="langgraph-checkpoint", extra="langgraph")

from langgraph.checkpoint.base import (  # noqa: E402
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

Config = Any
"""LangChain's `RunnableConfig`."""

ITEMS_AT_ONCE: Final = 50


class BlockingForms(BaseCheckpointSaver[str]):
    """A checkpointer whose async methods are written, with the others made of them."""

    def put(
        self,
        config: Config,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Config:
        """See `aput`."""
        return shared_loop().run(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: Config,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """See `aput_writes`."""
        shared_loop().run(self.aput_writes(config, writes, task_id, task_path))

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        """See `aget_tuple`."""
        return shared_loop().run(self.aget_tuple(config))

    def list(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """See `alist`."""
        return SyncStream(
            lambda: self.alist(config, filter=filter, before=before, limit=limit), ITEMS_AT_ONCE
        )

    def delete_thread(self, thread_id: str) -> None:
        """See `adelete_thread`."""
        shared_loop().run(self.adelete_thread(thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See `acopy_thread`."""
        shared_loop().run(self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See `aprune`."""
        shared_loop().run(self.aprune(thread_ids, strategy=strategy))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See `adelete_for_runs`."""
        shared_loop().run(self.adelete_for_runs(run_ids))
