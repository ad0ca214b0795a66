"""A link to a front end among those of other models, of which one thread serves all.

It does not wait itself: whoever waits for many of them asks for descriptors, and says what is
ready. Whether there is a batch is seen without taking it, so that the thread can choose.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

import torch

from shunter.batching.queue.attach import send
from shunter.handlers.queue.front_end_link import (
    ATTACH_S,
    GONE,
    LEAVE_S,
    RETRY_S,
    Attachment,
    FrontEndLink,
)


class PooledLink:
    """A front end comes, is greeted, attaches, gives batches and goes, and another one comes."""

    def __init__(self, link: FrontEndLink) -> None:
        """Of a loaded model."""
        self._link = link
        link.obey_guard()
        self._connection: socket.socket | None = None
        self._attachment: Attachment | None = None
        self.due: float | None = 0.0
        """When to ask for a connection, or to wait no longer for its answer or for the end; None:
        not now."""
        self.is_leaving = False
        """Its server has gone."""
        self.is_over = False
        """Nothing comes any more."""

    @property
    def path(self) -> bytes:
        """Where front ends listen."""
        return os.fsencode(self._link.path)

    @property
    def descriptors(self) -> list[int]:
        """Readable when there is something to :meth:`hear`."""
        found = [self._connection.fileno()] if self._connection else []
        return found + ([self._attachment.doorbell] if self._attachment else [])

    @property
    def has_batch(self) -> bool:
        """Whether :meth:`run` would find one."""
        return self._attachment is not None and self._attachment.end.is_given

    def connected(self, connection: socket.socket | None, error: int = 0) -> None:
        """A connection that was asked for, or why there is none."""
        if connection is None:
            self._gone(OSError(error, os.strerror(error)))
            return
        self._connection, self.due = connection, time.monotonic() + ATTACH_S
        try:
            self._link.greet(connection)
        except GONE as failure:
            self._gone(failure)

    def hear(self) -> None:
        """Of the front end, or of its doorbell. Never waits."""
        try:
            if self._attachment is None:
                assert self._connection is not None
                self._attachment = self._link.attached(self._connection)
                self._attachment.end.always_ring()
                self.due = None
            else:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._attachment.doorbell)
                self._attachment.words.hear()
                self.is_over |= self._attachment.words.is_dismissed
        except GONE as error:
            self._gone(error)

    def run(self) -> None:
        """The next batch, if there is one."""
        assert self._attachment is not None
        try:
            with torch.inference_mode():
                self._attachment.run_next((), 0, 0)
            self._attachment.end.always_ring()
        except GONE as error:
            self._gone(error)

    def leave(self) -> None:
        """Its server has gone: with it, or with its front end."""
        self.is_leaving = True
        if self._attachment is None or self._connection is None:
            self.is_over = True
        elif not self._link.outlives:
            with contextlib.suppress(OSError):
                send(self._connection, {"leave": True})
            self.due = time.monotonic() + LEAVE_S

    def late(self) -> bool:
        """``due`` has come; whether to ask for a connection now."""
        self.due = None
        self.is_over |= self.is_leaving
        if self._connection is not None:
            self._link.settle()
            return False
        return not self.is_over

    def _gone(self, error: Exception) -> None:
        self._link.tell(error)
        self._link.settle()
        self.close()
        self.due = time.monotonic() + RETRY_S
        self.is_over |= self.is_leaving

    def close(self) -> None:
        """Let go of the front end."""
        if self._attachment is not None:
            self._attachment.close()
        if self._connection is not None:
            self._connection.close()
        self._attachment = self._connection = None
