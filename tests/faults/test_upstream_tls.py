"""Connections that never come about, and certificates that are not right, in every transport (threats R15)."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sluicegate import UpstreamError, UpstreamUnavailable
from sluicegate.exchange import Host
from sluicegate.protocol.message import Result
from sluicegate.upstream.http import HttpUpstream
from sluicegate.upstream.http_endpoint import Timeouts
from tests.faults.proxy import Reset, Stall, Toxic, fault_proxy
from tests.faults.upstreams import LIMIT, Spoken, Way, era_of
from tests.upstream.http_server import INFO, Script, scripted
from tests.upstream.raw_server import Recorder, exchange

CANARY = "canary-4711"


pytestmark = pytest.mark.usefixtures("no_verdicts")


class Authority:
    """An authority of the test's own, and the certificates it signs."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"the authority of {place.name}")])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        certificate = (
            self._begun(self._name, self._key, timedelta(days=-1), timedelta(days=1))
            .add_extension(constraints, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.root = place / "root.pem"
        self.root.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _begun(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, begin: timedelta, end: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begin)
            .not_valid_after(now + end)
        )

    def server_context(
        self, *names: x509.GeneralName, begin: timedelta = timedelta(days=-1), end: timedelta = timedelta(days=1)
    ) -> ssl.SSLContext:
        """That of a server with a certificate for these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a server")])
        certificate = (
            self._begun(subject, key, begin, end)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        file = self._place / f"{certificate.serial_number}.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def client_context(self) -> ssl.SSLContext:
        """That of a client which trusts this authority and no other."""
        return ssl.create_default_context(cafile=str(self.root))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("known"))


@pytest.fixture(scope="module")
def stranger_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("unknown"))


LOCALHOST = x509.DNSName("localhost")


@asynccontextmanager
async def served(way: Way, context: ssl.SSLContext) -> AsyncGenerator[Script]:
    script = Spoken(way, lambda asked: script.reply(asked))
    async with asyncio.timeout(LIMIT), scripted(script, ssl=context) as server:
        yield server


def upstream(url: str, way: Way, authority: Authority, timeouts: Timeouts | None = None) -> HttpUpstream:
    return HttpUpstream(
        url,
        era=era_of(way),
        ssl_context=authority.client_context(),
        timeouts=timeouts,
        headers={"Authorization": CANARY},
        open_timeout=LIMIT,
    )


async def refusal(client: HttpUpstream) -> UpstreamError:
    with pytest.raises(UpstreamUnavailable) as caught:
        async with client.connect(Host({}, INFO, Recorder())):
            pass
    return caught.value


async def test_a_certificate_that_is_right_is_accepted(way: Way, authority: Authority) -> None:
    async with served(way, authority.server_context(LOCALHOST)) as server:
        async with upstream(server.url, way, authority).connect(Host({}, INFO, Recorder())) as connection:
            assert isinstance(await connection(exchange()), Result)
        assert {asked.header("authorization") for asked in server.asked} == {CANARY}


WRONG: dict[str, Callable[[Authority, Authority], ssl.SSLContext]] = {
    "expired": lambda ours, _: ours.server_context(LOCALHOST, begin=timedelta(days=-2), end=timedelta(days=-1)),
    "not yet valid": lambda ours, _: ours.server_context(LOCALHOST, begin=timedelta(hours=1)),
    "of another host": lambda ours, _: ours.server_context(x509.DNSName("elsewhere.example")),
    "of an address": lambda ours, _: ours.server_context(x509.IPAddress(ip_address("127.0.0.1"))),
    "of a lookalike": lambda ours, _: ours.server_context(x509.DNSName("localhost.example")),
    "of a stranger": lambda _, theirs: theirs.server_context(LOCALHOST),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_certificate_that_is_not_right_is_never_ignored_and_nothing_is_sent(
    way: Way, wrong: str, authority: Authority, stranger_authority: Authority
) -> None:
    async with served(way, WRONG[wrong](authority, stranger_authority)) as server:
        problem = await refusal(upstream(server.url, way, authority))
        assert (problem.delivered, problem.reason) == ("no", "backend_unavailable")
        assert "the certificate there is not valid" in problem.message and CANARY not in str(problem)
        assert problem.message.startswith(f"localhost:{server.place[1]} could not be reached: ")
        assert server.asked == []


async def test_a_server_that_speaks_no_tls_gets_nothing(way: Way, authority: Authority) -> None:
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(65536))
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}/mcp"
        problem = await refusal(upstream(url, way, authority))
        assert problem.delivered == "no" and "no secure connection could be made there" in problem.message
        assert CANARY.encode() not in heard
    finally:
        server.close()


@pytest.mark.parametrize("toxic", [Reset(after=100), Stall(after=100), Stall(), Reset()])
async def test_a_handshake_that_is_not_finished_delivered_nothing(way: Way, toxic: Toxic, authority: Authority) -> None:
    async with served(way, authority.server_context(LOCALHOST)) as server, fault_proxy(*server.place) as proxy:
        proxy.down = toxic
        client = upstream(proxy.url(scheme="https", name="localhost"), way, authority, Timeouts(connect=0.2))
        problem = await refusal(client)
        assert problem.delivered == "no" and server.asked == []
        await proxy.wait_clients(0)


async def test_a_host_that_does_not_take_a_connection_is_given_up_in_time(way: Way, authority: Authority) -> None:
    """The server does not accept, and its backlog is full: the next connection gets no answer."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(listener.getsockname())
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            url = f"http://{address}/mcp"
            problem = await refusal(upstream(url, way, authority, Timeouts(connect=0.2, taken=LIMIT, silence=LIMIT)))
            assert problem.delivered == "no"
            why = "could not be reached: no connection could be made there in time; see that its address is right."
            assert problem.message == f"{address} {why}"
        finally:
            for one in waiting:
                one.close()


async def test_a_vanished_host_is_asked_for_by_the_network(authority: Authority) -> None:
    """What only the network can find out it is told to: a server at work and one that is gone are equally silent."""
    async with served("modern", authority.server_context(LOCALHOST)) as server:
        client = upstream(server.url, "modern", authority)
        opened: list[socket.socket] = []
        real = socket.socket.setsockopt

        def note(self: socket.socket, *args: object) -> None:
            if args[:2] == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
                opened.append(self)
            real(self, *args)  # pyright: ignore

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket.socket, "setsockopt", note)
            async with client.connect(Host({}, INFO, Recorder())):
                assert [s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for s in opened] == [1]
                assert opened[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
