"""Ray: clusters, nodes, worker groups, jobs. The one package that imports it."""
