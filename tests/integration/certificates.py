"""Certificates for tests of TLS, made by the openssl program."""

import os
import subprocess

SERVER_NAME = "packd.test"


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


class Authority:
    """A certificate authority in a directory, and certificates from it."""

    def __init__(self, directory, name):
        self.directory, self.name = directory, name
        self.cert, self.key = self.path("ca.crt"), self.path("ca.key")
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}", "-days", "2",
                "-keyout", self.key, "-out", self.cert)

    def path(self, name):
        return os.path.join(self.directory, f"{self.name}-{name}")

    def issue(self, common_name, days="2"):
        """(certificate, key) files; days "-1" makes one that has expired."""
        base = self.path(f"{common_name}-{days}")
        cert, key, request, extra = base + ".crt", base + ".key", base + ".csr", base + ".ext"
        with open(extra, "w") as file:
            file.write(f"subjectAltName=DNS:{common_name}\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={common_name}", "-keyout", key, "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self.key, "-CAcreateserial", "-days", days, "-extfile", extra, "-out", cert)
        return cert, key


def read(path):
    with open(path, "rb") as file:
        return file.read()
