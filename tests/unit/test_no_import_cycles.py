"""No file imports, by whatever road, a file that imports it: not inside a function and not for a type either."""

from graphlib import TopologicalSorter

import grimp


def test_imports_have_no_cycle() -> None:
    graph = grimp.build_graph("kvgate", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) - {module} for module in graph.modules}
    assert len(imported) > 300
    TopologicalSorter(imported).prepare()
