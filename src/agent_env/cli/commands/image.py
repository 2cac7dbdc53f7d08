"""`agent-env image`: what containers are made from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.frame import FilePath, Group
from agent_env.cli.image_progress import bytes_text, moving
from agent_env.cli.output import json_option, line, moment, note, table, write_json
from agent_env.cli.session import configuration, run_async
from agent_env.cli.state import state_of
from agent_env.errors import EngineUnavailableError, UsageError

if TYPE_CHECKING:
    from agent_env.images import HeldImage, Images, UnpackedImage
    from agent_env.images.oci.records import Record
    from agent_env.images.opening import Opened
    from agent_env.images.space import OwnImage

platform_option = click.option("--platform", help="Such as linux/amd64; the machine's own when absent.")
WITHOUT = "without one: agent-env image pull --unpack NAME"
"""Of an image that is wanted where there is no engine."""
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")


@click.group(cls=Group)
def image() -> None:
    """Build, fetch, push, list and remove images. Only what agent-env built or unpacked itself is ever removed."""


@image.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the images that this installation built, and those that it unpacked.

    SIZE is that of all layers; ALONE is what no other image shares, and what removing the image frees.
    """

    async def work() -> dict[str, Any]:
        async with _opened() as opened:
            own = await (await opened.images.space()).own() if opened.images is not None else []
            unpacked = [_record(record, opened) for record in opened.store.held()]
            return {"engine": opened.why_not, "images": [_own(row) for row in own], "unpacked": unpacked}

    facts = run_async(work)
    if as_json:
        write_json(facts)
        return
    if facts["engine"] is not None:
        note(f"without the container engine: {facts['engine']}")
    if facts["images"]:
        built = [
            (_name(i), i["id"][7:19], bytes_text(i["size_bytes"]), bytes_text(i["unique_bytes"]), i["containers"], _moment(i["last_used"]))
            for i in facts["images"]
        ]
        table(("BUILT IMAGE", "ID", "SIZE", "ALONE", "CONTAINERS", "USED (UTC)"), built, right=(2, 3, 4))
    if facts["unpacked"]:
        rows = [(i["location"], i["id"][7:19], bytes_text(i["bytes"]), len(i["pins"]), _moment(i["last_used"])) for i in facts["unpacked"]]
        table(("UNPACKED IMAGE", "ID", "SIZE", "PINS", "USED (UTC)"), rows, right=(2, 3))
    if not facts["images"] and not facts["unpacked"]:
        note("no images of this installation")


@image.command()
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--all", "everything", is_flag=True, help="Everything that nothing uses, not only what is above the budget.")
@json_option
def gc(dry_run: bool, everything: bool, as_json: bool) -> int:
    """Remove layers of failed builds, and the least recently used images above the budget.

    The budgets are the limits image_budget_bytes (built) and image_layers_bytes (unpacked).
    """

    async def work() -> dict[str, Any]:
        async with _opened() as opened:
            built: dict[str, Any] = {"removed": [], "layers": [], "kept": {}}
            if opened.images is not None:
                done = await (await opened.images.space()).gc(everything=everything, dry_run=dry_run)
                removed = [{"id": row.image.id, "names": [*row.image.names], "bytes": row.unique_bytes} for row in done.removed]
                built = {"removed": removed, "layers": [*done.intermediate], "kept": dict(done.kept)}
            freed = await opened.store.gc(everything=everything, dry_run=dry_run)
            gone = [{"id": record.id, "location": record.location} for record in freed.removed]
            unpacked = {"removed": gone, "bytes": freed.bytes, "leavings": freed.leavings, "kept": freed.kept, "busy": freed.busy}
            wheels = [*opened.wheelhouse.gc(everything=everything, dry_run=dry_run)]
            return {"dry_run": dry_run, "engine": opened.why_not, "images": built, "unpacked": unpacked, "wheelhouses": wheels}

    facts = run_async(work)
    if as_json:
        write_json(facts)
    else:
        _show_removal(facts, everything=everything)
    return 1 if facts["unpacked"]["busy"] else 0


@image.command()
@click.argument("context", type=FilePath(path_type=Path), default=Path())
@click.option("-f", "--file", "dockerfile", default="Dockerfile", show_default=True, help="The Dockerfile's path below CONTEXT.")
@click.option("-t", "--tag", help="The image's name; one derived from the folder and its content when absent.")
@click.option("--build-arg", "arguments", multiple=True, metavar="NAME=VALUE", help="A build argument. Never a secret: it stays readable.")
@click.option("--target", help="A stage of the Dockerfile; the last one when absent.")
@click.option("--rebuild", is_flag=True, help="Run every step again.")
@platform_option
@quiet_option
@json_option
def build(
    *, context: Path, dockerfile: str, tag: str | None, arguments: tuple[str, ...], quiet: bool, as_json: bool, **options: Any
) -> None:
    """Build an image from a folder, unless the same content was built before."""
    from agent_env.images import BuildContext, BuildRequest, ImageReference, context_name, normalize_platform

    async def work() -> HeldImage:
        sources = BuildContext.of(context, dockerfile)
        platform = normalize_platform(options["platform"])
        name = ImageReference.parse(tag) if tag else context_name(_folder_id(context), sources.source_digest(platform))
        request = BuildRequest(
            sources, name, platform, build_args=_arguments(arguments), target=options["target"], rebuild=options["rebuild"]
        )
        async with _opened() as opened:
            with moving(quiet=quiet) as tell:
                return await _engine(opened).build(request, tell)

    held = run_async(work)
    _show_held(held, tag or held.names[0], None, as_json)


@image.command()
@click.argument("name", required=False)
@click.argument("used", metavar="IMAGE", required=False)
@click.option("--remove", is_flag=True, help="Use NAME itself again.")
@json_option
def base(name: str | None, used: str | None, remove: bool, as_json: bool) -> None:
    """Have builds use IMAGE where a Dockerfile says FROM NAME: where its registry can't be reached.

    NAME without a digest means it with any. Without arguments: list what is used in place of what.
    """
    from agent_env.images.provisions import Bases

    bases = Bases(configuration().state_root)
    if name is not None and (used is None) is not remove:
        raise UsageError("say which IMAGE is used in its place, or --remove", concerns=name)
    if name is not None:
        bases.write(name, used)
    now = bases.read()
    if as_json:
        write_json({"bases": now})
    elif now:
        table(("FROM", "USED"), sorted(now.items()))
    else:
        note("every base image is used as Dockerfiles name it")


@image.command()
@click.argument("name")
@click.option("--newest", is_flag=True, help="Ask the registry also when the image is here.")
@click.option("--unpack", is_flag=True, help="Unpack it for sandboxes without an engine; NAME may be oci:FOLDER or docker-archive:FILE.")
@platform_option
@quiet_option
@json_option
def pull(*, name: str, newest: bool, unpack: bool, platform: str | None, quiet: bool, as_json: bool) -> None:
    """Fetch an image, unless it is here."""
    from agent_env.images import ImageReference

    async def work() -> HeldImage:
        reference = ImageReference.parse(name)
        async with _opened() as opened:
            with moving(quiet=quiet) as tell:
                return await _engine(opened, hint=WITHOUT).get(reference, platform=platform, newest=newest, tell=tell)

    async def unpacked() -> UnpackedImage:
        async with _opened() as opened:
            with moving(quiet=quiet) as tell:
                return await opened.store.unpacked(name, platform=platform, newest=newest, tell=tell)

    if unpack:
        _show_unpacked(run_async(unpacked), as_json)
        return
    held = run_async(work)
    pinned = held.pin(ImageReference.parse(name))
    _show_held(held, name, str(pinned) if pinned is not None else None, as_json)


@image.command()
@click.argument("name")
@click.option("--source", help="A name or id that the engine holds it under; NAME when absent.")
@quiet_option
@json_option
def push(name: str, source: str | None, quiet: bool, as_json: bool) -> None:
    """Send an image to its registry, and print the name pinned to its content."""
    from agent_env.images import ImageReference

    async def work() -> str:
        reference = ImageReference.parse(name)
        async with _opened() as opened:
            with moving(quiet=quiet) as tell:
                return str(await _engine(opened).push(reference, source=source, tell=tell))

    pinned = run_async(work)
    if as_json:
        write_json({"name": name, "pinned": pinned})
    else:
        line(pinned)


@asynccontextmanager
async def _opened() -> AsyncIterator[Opened]:
    """The installation's images; what they learn of secrets is redacted from whatever this command shows."""
    from agent_env.images.opening import open_images
    from agent_env.redaction import Redactor

    config, redactor = configuration(), Redactor()
    state_of(click.get_current_context()).redact.also(redactor.redact)
    async with open_images(config, seen=redactor.add, redact=redactor.redact) as opened:
        yield opened


def _engine(opened: Opened, *, hint: str | None = None) -> Images:
    if opened.images is None:
        raise EngineUnavailableError(opened.why_not or "there is no container engine", hint=hint)
    return opened.images


def _arguments(given: tuple[str, ...]) -> dict[str, str]:
    odd = next((text for text in given if "=" not in text or text.startswith("=")), None)
    if odd is not None:
        raise UsageError("--build-arg takes NAME=VALUE", concerns=odd.partition("=")[0])
    return dict(text.partition("=")[::2] for text in given)


def _folder_id(folder: Path) -> str:
    import os

    from agent_env.ids import home_folder, local_id_root

    return local_id_root(folder.resolve(), home_folder(os.environ))


def _show_held(held: HeldImage, name: str, pinned: str | None, as_json: bool) -> None:
    if as_json:
        facts = {"id": held.id, "name": name, "pinned": pinned, "sources": held.sources}
        write_json({**facts, "platform": str(held.platform), "size_bytes": held.size_bytes})
    else:
        line(f"{pinned or name}  {held.id[7:19]}  {bytes_text(held.size_bytes)}")


def _show_unpacked(found: UnpackedImage, as_json: bool) -> None:
    config = found.config
    if not as_json:
        line(f"{found.location}  {found.id[7:19]}  {found.root}")
        return
    write_json(
        {
            "id": found.id,
            "location": found.location,
            "digest": found.digest,
            "root": str(found.root),
            "layers": [str(layer) for layer in found.layers],
            "entrypoint": [*config.entrypoint],
            "cmd": [*config.cmd],
            "env": dict(config.env),
            "user": config.user,
            "workdir": config.workdir,
            "ports": [*config.exposed_ports],
            "volumes": [*config.volumes],
            "platform": str(config.platform),
            "owners": found.owners,
            "skipped": [*found.skipped],
        }
    )


def _show_removal(facts: dict[str, Any], *, everything: bool) -> None:
    done = "would be removed" if facts["dry_run"] else "removed"
    if facts["engine"] is not None:
        note(f"without the container engine: {facts['engine']}")
    for row in facts["images"]["removed"]:
        line(f"image {_name(row)}: {done} ({bytes_text(row['bytes'])})")
    if facts["images"]["layers"]:
        line(f"layers of failed or removed builds: {len(facts['images']['layers'])} {done}")
    for id, why in facts["images"]["kept"].items():
        line(f"image {id[7:19]}: left: {why}")
    unpacked = facts["unpacked"]
    for row in unpacked["removed"]:
        line(f"unpacked image {row['location']}: {done}")
    if unpacked["busy"]:
        line("unpacked images: left, because some are being unpacked now")
    elif everything and unpacked["kept"]:
        line(f"unpacked images: {unpacked['kept']} left: sandboxes are made of them")
    if unpacked["leavings"]:
        line(f"half-done work of killed processes: {unpacked['leavings']} {done}")
    for key in facts["wheelhouses"]:
        line(f"wheels {key}: {done}")
    if not any((facts["images"]["removed"], facts["images"]["layers"], unpacked["removed"], unpacked["leavings"], facts["wheelhouses"])):
        line("nothing to remove")


def _own(row: OwnImage) -> dict[str, Any]:
    held = row.image
    return {
        "id": held.id,
        "names": [*held.names],
        "sources": held.sources,
        "platform": str(held.platform),
        "size_bytes": held.size_bytes,
        "unique_bytes": row.unique_bytes,
        "last_used": _iso(row.last_used),
        "containers": row.containers,
        "children": row.children,
        "foreign_names": [*row.foreign_names],
    }


def _record(record: Record, opened: Opened) -> dict[str, Any]:
    used, pins = opened.store.use_of(record.id)
    facts = {"id": record.id, "location": record.location, "digest": record.digest, "bytes": record.bytes}
    return {**facts, "last_used": _iso(used), "pins": pins}


def _name(facts: dict[str, Any]) -> str:
    return str(facts["names"][0]) if facts["names"] else str(facts["id"])[7:19]


def _iso(moment: float) -> str | None:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


def _moment(text: str | None) -> str | None:
    return moment(text) if text else None
