"""The forecast, judged on training measurements that others published."""
