"""A connected socket that never blocks, plain or with TLS."""

import errno
import socket
import ssl
from pathlib import Path

Parts = list[memoryview]


class Wire:
    """Writes several buffers at once, reads into memory that it is given."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._file = connected.fileno()  # TLS that cannot begin takes it from the socket
        self.is_connecting = True  # and writable once it is not

    def fileno(self) -> int:
        """Returns what to wait on; the same when it is closed."""
        return self._file

    def begin(self) -> bool:
        """Returns whether it is connected; raises OSError if it could not be."""
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, "could not connect")
        try:
            self._socket.getpeername()
        except OSError:
            return False
        self.is_connecting = False
        return True

    def write(self, parts: Parts) -> int:
        """How many bytes of these went; 0 if none can go now."""
        try:
            return self._socket.sendmsg(parts)
        except BlockingIOError:
            return 0

    def read_into(self, buffer: memoryview) -> int:
        """How many bytes came; 0 if there are none now; raises ConnectionError at the end."""
        try:
            num_bytes = self._socket.recv_into(buffer)
        except BlockingIOError:
            return 0
        if num_bytes == 0:
            raise ConnectionResetError("the other side closed the connection")
        return num_bytes

    @property
    def num_decrypted(self) -> int:
        """Bytes that can be read although the socket is not readable."""
        return 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class TlsWire(Wire):
    """The same, encrypted; each side knows the other's certificate."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, accepts: bool) -> None:
        super().__init__(connected)
        self._context = context
        self._accepts = accepts
        self._tls: ssl.SSLSocket | None = None

    def begin(self) -> bool:
        """Returns whether it is connected and TLS is agreed upon; raises OSError if it cannot
        be.
        """
        if self._tls is None:
            if not super().begin():
                return False
            self._tls = self._context.wrap_socket(
                self._socket, server_side=self._accepts, do_handshake_on_connect=False
            )
            self._socket = self._tls
        try:
            self._tls.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        return True

    def write(self, parts: Parts) -> int:
        """The first of these alone: TLS copies it anyway."""
        try:
            return self._socket.send(parts[0])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    def read_into(self, buffer: memoryview) -> int:
        """Reads as without TLS."""
        try:
            return super().read_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0

    @property
    def num_decrypted(self) -> int:
        """Returns what TLS has read ahead."""
        return 0 if self._tls is None else self._tls.pending()


def connecting(host: str, port: int) -> socket.socket:
    """A socket that begins to connect; raises OSError if it cannot even begin."""
    begun = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    begun.setblocking(False)
    code = begun.connect_ex((host, port))
    if code not in (0, errno.EINPROGRESS):
        begun.close()
        raise OSError(code, "could not connect")
    return begun


def tls_context(certificate: Path, key: Path, accepts: bool) -> ssl.SSLContext:
    """Both sides have this one certificate and trust no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if accepts else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    context.check_hostname = False  # the certificate itself is what is known
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificate)
    return context
