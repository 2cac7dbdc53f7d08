"""Keys by the W3C's names (UI Events): a character, or a named key in any case. Other spellings are refused with a hint."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Final, Literal

from .faults import fault

NAMED: Final = (
    *("Alt", "AltGraph", "CapsLock", "Control", "Fn", "FnLock", "Hyper", "Meta", "NumLock", "ScrollLock", "Shift", "Super"),
    *("Enter", "Tab", "ArrowDown", "ArrowLeft", "ArrowRight", "ArrowUp", "End", "Home", "PageDown", "PageUp"),
    *("Backspace", "Clear", "Copy", "Cut", "Delete", "Insert", "Paste", "Redo", "Undo"),
    *("Cancel", "ContextMenu", "Escape", "Execute", "Find", "Help", "Pause", "Play", "Select", "ZoomIn", "ZoomOut"),
    *("BrightnessDown", "BrightnessUp", "Eject", "Power", "PrintScreen", "WakeUp"),
    *(f"F{number}" for number in range(1, 25)),
    *("AudioVolumeDown", "AudioVolumeMute", "AudioVolumeUp", "MediaPlayPause", "MediaStop", "MediaTrackNext", "MediaTrackPrevious"),
    *("BrowserBack", "BrowserFavorites", "BrowserForward", "BrowserHome", "BrowserRefresh", "BrowserSearch", "BrowserStop"),
)
_BY_LOWER: Final = {name.lower(): name for name in NAMED}
_ALIASES: Final = {
    **dict.fromkeys(("ctrl", "control_l"), "Control"),
    **dict.fromkeys(("cmd", "command", "win", "windows"), "Meta"),
    **dict.fromkeys(("option", "opt"), "Alt"),
    "return": "Enter",
    "esc": "Escape",
    "del": "Delete",
    "ins": "Insert",
    "space": "' '",
    "up": "ArrowUp",
    "down": "ArrowDown",
    "left": "ArrowLeft",
    "right": "ArrowRight",
    "pgup": "PageUp",
    "pgdn": "PageDown",
}


def chord(keys: Sequence[str], supported: Collection[str] | Literal["all"]) -> list[str]:
    """The keys of a chord in the W3C's case.

    Raises:
        AgentEnvError: `invalid_argument` for what is no key, `unsupported` for one that this computer can't press.
    """
    if not keys:
        raise fault("invalid_argument", "keys must name at least one key, such as ['Control', 's']")
    names = [key if len(key) == 1 else _named(key) for key in keys]
    lacking = [] if supported == "all" else [name for name in names if name not in supported]
    if lacking:
        raise fault("unsupported", f"this computer can't press {', '.join(lacking)}")
    return names


def _named(key: str) -> str:
    name = _BY_LOWER.get(key.lower())
    if name is not None:
        return name
    if "+" in key:
        hint = "one key an entry, such as ['Control', 's']"
    else:
        near = _ALIASES.get(key.lower()) or next(iter(difflib.get_close_matches(key.lower(), _BY_LOWER, n=1)), None)
        hint = f"did you mean {_BY_LOWER.get(near or '', near)}?" if near else "a character, or a name such as Enter"
    raise fault("invalid_argument", f"{key!r} is not a W3C key", hint=hint)
