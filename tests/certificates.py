"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Authority:
    """A private certificate authority; its own certificate is in `file`."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def file(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, name: str) -> Path:
        """A file with a certificate for this name, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        built = _builder(name, self.certificate.subject, key.public_key()).add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
        )
        file = self.folder / f"{name}.pem"
        signed = built.sign(self.key, hashes.SHA256())
        file.write_bytes(_key_bytes(key) + signed.public_bytes(_PEM))
        return file

    def server(self, name: str, *, asks_for_client: bool = False) -> ssl.SSLContext:
        """How a server of this name speaks TLS; it may demand a certificate of its clients."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.issue(name))
        if asks_for_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.file)
        return context


def authority(folder: Path, called: str = "authority") -> Authority:
    """A new authority whose files are in this folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, called)])
    built = _builder(called, name, key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    made = Authority(folder, key, built.sign(key, hashes.SHA256()))
    made.file.write_bytes(made.certificate.public_bytes(_PEM))
    return made


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
