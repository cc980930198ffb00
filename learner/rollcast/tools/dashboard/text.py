"""An element of the page that shows text literally, never as HTML."""

from nicegui.elements.mixins.text_element import TextElement


class Text(TextElement):
    """A text on the page.

    Args:
        text: The text, which may come from another machine.
        tag: The HTML element.
        classes: Its classes of CSS.
    """

    def __init__(self, text: str = "", *, tag: str = "div", classes: str = "") -> None:
        super().__init__(tag=tag, text=text)
        self.classes(classes)

    def show(self, text: str, title: str = "") -> None:
        """Sets the text and its tooltip; sends nothing if both are unchanged."""
        self.set_text(text)
        if title != self.props.get("title", ""):
            self.props["title"] = title
            self.update()
