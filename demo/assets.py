"""Files of the browser beside gradio's own: style, the player of audio and the microphone."""

from pathlib import Path

import gradio as gr

FOLDER = Path(__file__).parent
CSS = (FOLDER / "page.css").read_text(encoding="utf-8")
PLAYER_SCRIPT = (FOLDER / "player.js").read_text(encoding="utf-8")
PLAYER_HTML = """<div class="os-player" data-state="idle">
<span class="os-player-words"></span><a hidden download="answer.wav">Save</a>
<button type="button" disabled>Pause</button></div>"""
TALK_SCRIPT = (FOLDER / "talk.js").read_text(encoding="utf-8")
TALK_HTML = """<div class="os-talk" data-state="idle"><button type="button">Talk</button>
<span class="os-talk-line" role="status"></span><div class="os-talk-words"></div></div>"""
# Names of fonts that are on the reader's machine: nothing is fetched.
SANS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
MONO = ["ui-monospace", "Menlo", "Consolas", "monospace"]


def theme() -> gr.themes.Base:
    """Gradio's own with fonts of the reader's machine and hints of enough contrast."""
    chosen = gr.themes.Default(
        primary_hue="teal",
        secondary_hue="teal",
        neutral_hue="slate",
        radius_size="sm",
        font=SANS,
        font_mono=MONO,
    )
    return chosen.set(
        body_text_color_subdued="*neutral_500",
        body_text_color_subdued_dark="*neutral_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_hover_dark="*primary_800",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
    )


def player(name: str) -> gr.HTML:
    """Return the player: its value is the id of the audio to play; None is silence."""
    return gr.HTML(
        html_template=PLAYER_HTML,
        js_on_load=PLAYER_SCRIPT,
        apply_default_css=False,
        elem_id=name,
    )
