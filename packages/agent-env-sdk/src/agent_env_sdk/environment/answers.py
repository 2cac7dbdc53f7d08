"""What a tool gives back: Python values become MCP content, and structured content where the return annotation promises it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin

import pydantic_core
from pydantic import BaseModel, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from agent_env_sdk.wire.errors import AgentEnvError

from .arguments import Untitled


@dataclass(frozen=True, slots=True)
class Image:
    """A picture among a tool's results."""

    data: bytes
    mime_type: str = "image/png"

    def block(self) -> dict[str, Any]:
        """As a content block."""
        return {"type": "image", "data": base64.b64encode(self.data).decode(), "mimeType": self.mime_type}


@dataclass(frozen=True, slots=True)
class Audio:
    """Sound among a tool's results."""

    data: bytes
    mime_type: str = "audio/wav"

    def block(self) -> dict[str, Any]:
        """As a content block."""
        return {"type": "audio", "data": base64.b64encode(self.data).decode(), "mimeType": self.mime_type}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A result said in full, for tools that need more than a return value, and for `on_tool_call`."""

    content: Any = ()
    """Text, pictures, sound, content blocks (objects with a `type`), or a list of them; `structured` as text when there is nothing."""
    structured: Mapping[str, Any] | None = None
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As MCP carries it."""
        content = list(blocks(self.content)) or list(blocks(self.structured))
        answer: dict[str, Any] = {"content": content, "isError": self.is_error}
        if self.structured is not None:
            answer["structuredContent"] = dict(self.structured)
        return {**answer, "_meta": dict(self.meta)} if self.meta else answer


@dataclass(frozen=True, slots=True)
class Output:
    """The structured form of a tool's results."""

    adapter: TypeAdapter[Any]
    schema: dict[str, Any]
    wrapped: bool
    """Whether the value stands under `result`, as what isn't an object must."""

    def structure(self, value: Any) -> dict[str, Any]:
        """The value as structured content.

        Raises:
            pydantic.ValidationError: It isn't what the annotation promises.
        """
        plain = self.adapter.dump_python(self.adapter.validate_python(value), mode="json", by_alias=True)
        return {"result": plain} if self.wrapped else plain


def output_of(annotation: Any, wanted: bool | None, missing: Any) -> Output | None:
    """The structured form that a return annotation allows.

    Args:
        annotation: The annotation, or `missing`.
        wanted: True to insist, False for never, None for what is possible.
        missing: What stands for no annotation.

    Raises:
        TypeError: Structured output is insisted on, and the annotation has no JSON Schema of its own.
    """
    if wanted is False:
        return None
    why: Exception | str = "it says nothing of a shape"
    annotation = _promised(annotation)
    if annotation is not missing and annotation is not Any and not _says_content(annotation):
        try:
            return _output(annotation)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            why = error
    if wanted:
        raise TypeError(f"structured_output=True needs a return annotation that has a JSON Schema: {why}")
    return None


def answer(value: Any, output: Output | None) -> dict[str, Any]:
    """A handler's return value as MCP carries it."""
    if isinstance(value, ToolResult):
        return value.to_json()
    if isinstance(value, BaseModel) and type(value).__name__ == "CallToolResult":  # MCP's own, of either generation
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    structured = output.structure(value) if output is not None else None
    return ToolResult(value, structured).to_json()


def refusal(error: AgentEnvError) -> dict[str, Any]:
    """An error on purpose, as MCP carries it."""
    return ToolResult(f"{error.code}: {error.message}", error.fields(), is_error=True).to_json()


def crash(tool: str, error: Exception) -> dict[str, Any]:
    """Any other error, as MCP carries it."""
    return ToolResult(f"Error executing tool {tool}: {error}", is_error=True).to_json()


def blocks(value: Any) -> Iterable[dict[str, Any]]:
    """A value as content blocks: text as it is, lists item by item, everything else as JSON text."""
    match value:
        case None:
            return
        case str():
            yield {"type": "text", "text": value}
        case Image() | Audio():
            yield value.block()
        case list() | tuple():
            for item in value:
                yield from blocks(item)
        case {"type": "text" | "image" | "audio" | "resource" | "resource_link"}:
            yield dict(value)
        case BaseModel() if getattr(value, "type", None) in {"text", "image", "audio", "resource", "resource_link"}:
            yield value.model_dump(mode="json", by_alias=True, exclude_none=True)
        case _:
            yield {"type": "text", "text": json.dumps(plain(value), indent=2, ensure_ascii=False)}


def plain(value: Any) -> Any:
    """A value as JSON: models, dates and the like in their usual spelling, infinities null, what is unknown as its `str`."""
    return pydantic_core.to_jsonable_python(value, fallback=str, inf_nan_mode="null", by_alias=True)


def _output(annotation: Any) -> Output:
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    schema = adapter.json_schema(mode="serialization", by_alias=True, schema_generator=Untitled)
    reference = schema.get("$ref")
    if isinstance(reference, str):  # a model that mentions itself: its definition stands at the root as well
        schema = {**schema["$defs"][reference.rpartition("/")[2]], "$defs": schema["$defs"]}
    if schema.get("type") == "object":
        return Output(adapter, schema, wrapped=False)
    definitions = schema.pop("$defs", None)
    wrapped: dict[str, Any] = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    return Output(adapter, {**wrapped, "$defs": definitions} if definitions else wrapped, wrapped=True)


def _promised(annotation: Any) -> Any:
    """What is promised by `Annotated[ToolResult, Model]`: results said in full, of the model's shape."""
    if get_origin(annotation) is Annotated and _says_content(get_args(annotation)[0]):
        return next((each for each in get_args(annotation)[1:] if isinstance(each, type) and issubclass(each, BaseModel)), ToolResult)
    return annotation


def _says_content(annotation: Any) -> bool:
    if annotation in (Image, Audio, ToolResult) or getattr(annotation, "__name__", "") in {"CallToolResult", "ContentBlock"}:
        return True
    return get_origin(annotation) is not None and any(_says_content(argument) for argument in get_args(annotation))
