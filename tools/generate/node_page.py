"""docs/reference/nodes.md: what the controller reads of nodes and devices, drawn from the tables that it reads them by."""

from itertools import groupby

from generate.reference import HEAD
from kvgate.nodes.devices import DRIVERS
from kvgate.nodes.node import FAR_PERCENT, label_rows

_PAGE = """\
# GPUs of nodes

With `nodes.watch` of the chart (`--watch-nodes` of the controller) kvgate watches nodes and ResourceSlices. Without it, and where the API
server forbids it, the catalogue alone counts; the controller's log says so once. The webhook and the command line know no nodes.

## What follows from them

| in the spec | what counts |
|---|---|
| `accelerator.type` | the least memory of the nodes that can take the pod, where the driver's label says less than the catalogue |
| no `type`, but `resourceName`, `resourceClaim` or `template.nodeSelector` | the GPU with the least memory that these nodes have; the \
pods select it. It is kept in the AdmissionRecord, and stays until the spec is edited. Where no node says which GPU it has, the verdict \
is Unknown |
| `accelerator.resourceName: nvidia.com/mig-3g.40gb` | a slice of the mixed MIG strategy: the pods request it, and its memory is judged. \
With the type of the board, or without any |
| `accelerator.resourceClaim` | a ResourceClaimTemplate (`resource.k8s.io/v1`, Kubernetes 1.34 and later) with the class, the \
expressions and as many devices as the parallel sizes make. For a GPU of NVIDIA it also asks for the product that was judged, or the \
profile of the slice. Where the API server has no such kind, `Stalled` says `ClaimsNotServed` |

A node can take a pod if it has the labels of the node selector and of the required affinity, taints that the pods tolerate, and the
resource. Whether it is cordoned, not ready or full does not count, so verdicts do not change with the load. An admitted verdict stands:
nodes that come later show in `NodesDiffer`, and in today's prediction.

| reason of `NodesDiffer` | meaning |
|---|---|
| `NoNodeWithGpu` | no node that the pods may use has the GPU; the message names those that they have, or the label that they lack |
| `LessMemory` | a node has less memory than the catalogue says; the message has both figures, and the lesser counts |
| `NodesContradict` | two labels, or a label and the catalogue, differ by more than {far} %, in the product or in the number of GPUs. \
The message has both; the lesser figure counts, and nothing is refused because of it |
| `NodesDecide`, `NodesAgree`, `NodesUnknown` | the condition is False or Unknown: nothing contradicts |

Where GPUs are missing, the reason of `Ready` has what the nodes may have free: their allocatable GPUs less those of kvgate's own pods. \
Pods
of others are not watched, so it says "at most".

## Labels

A fact is taken from the first of its labels that a node has; the others must agree with it. `*` is a MIG resource, such as `mig-3g.40gb`.

| fact | label | set by |
|---|---|---|
{labels}

Memory by `nvidia.com/` is the driver's; the others are nominal sizes, which contradict and never count. Values that name a GPU are \
those of
the accelerator catalogue and of
[the table of clouds](../../operator/kvgate/manifests/pods/data/node_labels.csv).

## Devices

| driver | its classes |
|---|---|
{drivers}

Read are the attributes `productName`, `type` and `profile`, and the capacity `memory`, of the newest generation of a pool; a memory of \
0 is
one that the driver cannot read. Of expressions, `==` on these attributes is understood. With any other expression, or another class, name
`accelerator.type`.
"""


def nodes_reference() -> str:
    rows = []
    for fact, labels in groupby(label_rows(), key=lambda row: row[2]):
        for index, (label, by, _) in enumerate(labels):
            rows.append(f"| {fact if index == 0 else ''} | `{label}` | {by} |")
    drivers = [f"| `{driver}` | {', '.join(f'`{each}`' for each in classes)} |" for driver, classes in DRIVERS.items()]
    return f"{HEAD}\n" + _PAGE.format(far=FAR_PERCENT, labels="\n".join(rows), drivers="\n".join(drivers))
