# SPDX-License-Identifier: MIT
"""This file finds the norms of a model: from its operators, from its layers, or from the names of its tensors."""

from layernorm.models.graph import Graph
from layernorm.models.model_file import ModelFile
from layernorm.models.norm_record import Found, NormRecord, Unidentified
from layernorm.models.risks import risks
from layernorm.spec.errors import SpecError

Pair = tuple[list[NormRecord], list[Unidentified]]


def identify(model: ModelFile) -> Found:
    """Give a record for each norm of a model in the order in which they run, what may be one, and what may go wrong."""
    from layernorm.models.names import unique_names

    if model.card is not None:
        return model.card
    if model.graph is not None:
        norms, unidentified = _of_graph(model.graph)
    elif model.layers or model.format == "keras":  # without layers Keras' names of tensors say nothing
        norms, unidentified = _of_layers(model)
    else:
        norms, unidentified = _of_names(model)
    norms = unique_names(norms)
    unidentified += [Unidentified(model.path, note) for note in model.notes]
    return Found(norms, unidentified, risks(model, norms))


# What recognizes loose operations, and what knows architectures, is loaded for the files that need it.


def _of_graph(graph: Graph) -> Pair:
    from layernorm.models.cone import is_step
    from layernorm.models.operators import record_of
    from layernorm.models.placement import placed
    from layernorm.models.recognize import recognize

    fused: dict[int, NormRecord] = {}
    unidentified: list[Unidentified] = []
    taken: set[int] = set()
    position: dict[str, int] = {}
    for number, (inside, node) in enumerate(graph.walk()):
        position |= dict.fromkeys(node.outputs, number)
        found = record_of(inside, node)
        if found is None:
            continue
        if isinstance(found, NormRecord):
            fused[id(node)] = found
        else:
            unidentified.append(found)
        if not is_step(node):
            taken.add(id(node))
    loose = recognize(graph, taken)
    # an instance norm between two reshapes is a step of a group norm, which is in its place
    whole = [norm for number, norm in fused.items() if number not in loose.explained]
    norms = sorted([*whole, *loose.norms], key=lambda norm: position.get(norm.output, len(position)))
    return placed(graph, norms), unidentified + loose.unidentified


def _of_layers(model: ModelFile) -> Pair:
    from layernorm.models.layers import record_of

    norms: list[NormRecord] = []
    unidentified: list[Unidentified] = []
    for layer in model.layers:
        try:
            record = record_of(layer)
        except SpecError as error:
            unidentified.append(Unidentified(layer.where, f"its settings contradict each other: {error}"))
            continue
        if record is None:
            unidentified.append(Unidentified(layer.where, f"{layer.kind} is no norm that is known here."))
        else:
            norms.append(record)
    return norms, unidentified


def _of_names(model: ModelFile) -> Pair:
    from layernorm.models.contradictions import contradictions
    from layernorm.models.families import records

    norms, unidentified = records(model)
    return norms, unidentified + contradictions(model, norms)
