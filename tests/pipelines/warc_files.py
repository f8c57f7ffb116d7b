"""WARC files as another library writes them."""

import gzip
import io
from collections.abc import Collection, Sequence

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter


def write_warc(pages: Sequence[tuple[str, bytes]], *, packed: bool, encoded: Collection[int] = ()) -> bytes:
    """
    Args:
        pages: (URL, HTML).
        packed: as .warc.gz.
        encoded: numbers of pages whose HTTP answer was gzipped.
    """
    file = io.BytesIO()
    writer = WARCWriter(file, gzip=packed)
    writer.write_record(writer.create_warcinfo_record("a.warc", {"software": "tests"}))
    for number, (url, body) in enumerate(pages):
        headers = [("Content-Type", "text/html; charset=utf-8"), ("X-Robots-Tag", "all")]
        if number in encoded:
            body = gzip.compress(body)
            headers.append(("Content-Encoding", "gzip"))
        answer = StatusAndHeaders("200 OK", headers, protocol="HTTP/1.1")
        writer.write_record(writer.create_warc_record(url, "response", payload=io.BytesIO(body), http_headers=answer))
    return file.getvalue()
