"""An element of the page that shows text as text: nothing in it is HTML, from any source."""

from nicegui.elements.mixins.text_element import TextElement


class Text(TextElement):
    """A piece of text.

    Args:
        text: The text, from anywhere.
        tag: The HTML element.
        classes: Its classes of CSS.
    """

    def __init__(self, text: str = "", *, tag: str = "div", classes: str = "") -> None:
        super().__init__(tag=tag, text=text)
        self.classes(classes)

    def show(self, text: str, title: str = "") -> None:
        """Sets the text, and what shows when it is pointed at; sends nothing if both are as before."""
        self.set_text(text)
        if title != self.props.get("title", ""):
            self.props["title"] = title
            self.update()
