"""A project of Drainmark in a code location of somebody else: its definitions, and the component of `dg`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from dagster.components.scaffold.scaffold import Scaffolder, ScaffoldRequest, scaffold_with
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, Field

from drainmark.orchestration.dagster_assets.translator import DrainmarkTranslator, one_each
from drainmark.orchestration.dagster_jobs.factory import build_definitions
from drainmark.resources.settings import load_settings


def definitions(
    project: str | os.PathLike[str] | None = None, *, translator: DrainmarkTranslator | None = None
) -> dg.Definitions:
    """Return the definitions of a project: for each region a job, assets, checks, a sensor or schedule, and the desk.

    They merge with other definitions, and bring no executor, resource or logger. Several projects can be in one
    location if their applications have different names.

    Args:
        project: the folder with `drainmark.toml`; `DRAINMARK_PROJECT`, or else the working directory, by default.
            Inputs and home are found from there, wherever Dagster was started.
        translator: decides what the assets are called, and who looks after them.

    Raises:
        HomeNotFound: there is no project.
        UsageError: a setting is wrong, or the translator returned no specification or the same key twice.

    Example:
        import dagster as dg
        from drainmark.dagster import definitions

        defs = dg.Definitions.merge(definitions(project="../words"), dg.Definitions(assets=[report]))
    """
    settings = load_settings(project=Path(project) if project is not None else None)
    return build_definitions(settings, translator=translator, is_guest=project is not None)


class _Params(BaseModel):
    """What `dg scaffold defs` asks for."""

    project: str = Field(default=".", description="The folder with drainmark.toml, from that of defs.yaml.")


class ProjectScaffolder(Scaffolder[_Params]):
    """Writes the `defs.yaml` of a project."""

    @classmethod
    def get_scaffold_params(cls) -> type[_Params]:
        return _Params

    def scaffold(self, request: ScaffoldRequest[_Params]) -> None:
        dg.scaffold_component(request, {"project": request.params.project})


@scaffold_with(ProjectScaffolder)
class DrainmarkProjectComponent(dg.Component, dg.Model, dg.Resolvable):
    """The regions of a project: jobs, assets, checks, sensors and schedules, and the desk.

    Attributes:
        project: the folder with `drainmark.toml`, from the folder of `defs.yaml`.
        translation: key, group, owners, tags, dependencies, automation and others of the assets; `{{ spec }}` is what
            Drainmark made. Dependencies are added to those that Drainmark knows.
        pool: the pool that the run of a region takes a place of; none by default.
        partitions: `file` or the first day, see `DrainmarkTranslator.get_partitions`; none by default.

    Example:
        type: drainmark.dagster.DrainmarkProjectComponent
        attributes:
          project: ../../../words
          translation:
            key_prefix: warehouse
            owners: ["team:data"]
    """

    project: str = "."
    translation: Annotated[TranslationFn[Any] | None, TranslationFnResolver(lambda spec: {"spec": spec})] = None
    pool: str | None = None
    partitions: str | None = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        folder = Path(context.path)
        folder = folder if folder.is_dir() else folder.parent
        return definitions(folder / self.project, translator=_ByYaml(self))


class _ByYaml(DrainmarkTranslator):
    """What a YAML file says of the assets."""

    def __init__(self, said: DrainmarkProjectComponent) -> None:
        self._said = said

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        if self._said.translation is None:
            return spec
        made = self._said.translation(spec, spec)
        # Dagster takes the dependencies of the YAML instead of the spec's; where a table's rows come from must not go.
        return made.replace_attributes(deps=one_each((*made.deps, *spec.deps)))

    def get_pool(self, region: str) -> str | None:
        return self._said.pool

    def get_partitions(self, region: str) -> str | None:
        return self._said.partitions
