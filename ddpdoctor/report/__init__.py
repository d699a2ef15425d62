"""The report object and its renderings. Everything shown is a rendering of `Report`."""

from ddpdoctor.report.model import Job, Node, Report, World
from ddpdoctor.report.registry import Renderer, RendererRegistry, RenderOptions

__all__ = ["Job", "Node", "RenderOptions", "Renderer", "RendererRegistry", "Report", "World"]
