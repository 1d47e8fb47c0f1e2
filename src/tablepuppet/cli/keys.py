"""The commands that make secrets: ``tablepuppet certs`` and ``tablepuppet keys``. No secret is ever printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tablepuppet.cli.app import App
from tablepuppet.cli.output import JsonOption, print_json
from tablepuppet.errors import ConfigError

if TYPE_CHECKING:
    from tablepuppet.privacy.certificates import CertificateFiles

certs = App(help="Make a small authority and certificates for trials.")
keys = App(help="Make the key that parties share to blind what they join.")

FolderOption = Annotated[Path, typer.Option(help="The folder of the authority and its certificates.")]


@certs.command("init")
def init(folder: FolderOption = Path("certs"), as_json: JsonOption = False) -> None:
    """Make an authority: ca.crt, to give to everybody, and ca.key, to give to nobody."""
    from tablepuppet.privacy.certificates import new_authority

    _print_files(new_authority(folder), as_json)


@certs.command("issue")
def issue_certificate(
    name: Annotated[str, typer.Argument(help="The owner: a party, or somebody who may call parties.")],
    party: Annotated[bool, typer.Option("--party", help="For a party: it can serve, and not call.")] = False,
    analyst: Annotated[bool, typer.Option("--analyst", help="For a caller: it can call, and not serve.")] = False,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A DNS name or IP address of the owner; may repeat; localhost and 127.0.0.1 if absent."),
    ] = None,
    folder: FolderOption = Path("certs"),
    days: Annotated[int, typer.Option(help="For how many days the certificate is valid.")] = 365,
    as_json: JsonOption = False,
) -> None:
    """Make NAME.crt and NAME.key, for a party or for somebody who calls parties."""
    from tablepuppet.privacy.certificates import issue

    if party == analyst:
        raise ConfigError(f"say whose certificate it is: add --party if {name!r} serves tables, --analyst if it calls")
    _print_files(issue(folder, name, host or (), days, role="party" if party else "analyst"), as_json)


@keys.command("new")
def new(
    path: Annotated[Path, typer.Argument(help="The file to make; it must not exist.")], as_json: JsonOption = False
) -> None:
    """Make a blinding key: every party gets this file, the analyst does not."""
    from tablepuppet.party.blind import new_blinding_key

    new_blinding_key(path)
    print_json({"key": str(path)}) if as_json else typer.echo(f"blinding key: {path}")


def _print_files(files: CertificateFiles, as_json: bool) -> None:
    if as_json:
        paths = {"certificate": str(files.certificate), "key": str(files.key)}
        print_json(paths | {"names": files.names, "expires": files.expires.isoformat()})
        return
    names = f" for {', '.join(files.names)}" if files.names else ""
    typer.echo(f"certificate: {files.certificate}{names}, until {files.expires:%Y-%m-%d}")
    typer.echo(f"private key: {files.key}; give it to nobody else")
