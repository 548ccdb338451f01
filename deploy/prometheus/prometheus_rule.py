#!/usr/bin/env python3
"""Writes deploy/k8s/components/alerts/prometheus-rule.yaml, the Prometheus operator's form of rules.yaml, which it holds line by line.

    deploy/prometheus/prometheus_rule.py
"""

import os

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "k8s", "components", "alerts", "prometheus-rule.yaml")
HEAD = """# Made from deploy/prometheus/rules.yaml by deploy/prometheus/prometheus_rule.py; a test compares the two.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: packd
spec:
"""


def main():
    with open(os.path.join(HERE, "rules.yaml")) as file:
        lines = file.read().split("\n")
    body = lines[lines.index("groups:"):]
    with open(OUT, "w") as file:
        file.write(HEAD + "\n".join("  " + line if line else "" for line in body))


if __name__ == "__main__":
    main()
