"""``gt.rebalance``: a client's tensors move onto the meshes that its signals have now that more workers are connected.

A mesh of all workers is longer than it was. Every tensor on the old mesh moves to the new one, with the same
placements; the values do not change. Terms of a sum are combined first. A mesh of several axes has the sizes that the
configuration names, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gt.dispatcher.move_emission import MoveEmitter
from gt.dispatcher.plan.layouts import Layout, Lost, Mesh, TensorState
from gt.dispatcher.plan.moves import PlannedMove
from gt.dispatcher.plan.signals import Signals
from gt.dispatcher.segments import ForwardOutput
from gt.dispatcher.state import Client


def rebalance(client: Client, before: Signals, workers: Sequence[int], whole: Collection[int]) -> ForwardOutput:
    """Move the tensors of a client whose signals were ``before``. Auto-sharding keeps those in ``whole`` replicated."""
    output = ForwardOutput()
    emitter = MoveEmitter(client, output, 0)
    meshes = _new_meshes(before, client.config, workers)
    for id, state in list(client.tensors.items()):
        if isinstance(state, Lost):
            continue
        target = _target(client, state, meshes, workers, id in whole)
        if target is not state.home:
            emitter.relocate(id, PlannedMove(0, state.home, target, state.type))
    return output


def _new_meshes(before: Signals, after: Signals, workers: Sequence[int]) -> dict[Mesh, Mesh]:
    """Old mesh -> new mesh, of the signals whose mesh has one axis and has grown."""
    meshes: dict[Mesh, Mesh] = {}
    for name, mesh in before.meshes().items():
        rule = after.rule(name, workers)
        if rule is None or isinstance(rule, Lost) or len(rule.mesh.shape) != 1 or len(mesh.shape) > 1:
            continue
        if set(mesh.workers) < set(rule.mesh.workers):
            meshes.setdefault(mesh, rule.mesh)
    return meshes


def _target(
    client: Client, state: TensorState, meshes: dict[Mesh, Mesh], workers: Sequence[int], is_whole: bool
) -> Layout:
    """The layout that a tensor gets."""
    mesh = meshes.get(state.home.mesh)
    if mesh is None:
        return state.home
    if state.home.mesh.shape:
        return Layout(mesh, state.home.combined().placements)
    # one worker had the whole tensor: where auto-sharding would place it
    rule = client.config.rule("", workers)
    if is_whole or rule is None or isinstance(rule, Lost) or rule.mesh is not mesh:
        return Layout(mesh)
    return rule.layout(state.type)
