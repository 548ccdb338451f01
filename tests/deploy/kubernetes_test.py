"""The Kubernetes manifests: kustomize renders them, the API's schemas accept them, and what they promise each other and packd is true."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

import harness

VENV = os.environ.get("PACKD_VENV") or os.path.join(os.path.expanduser("~"), ".cache", "packd", "venv")
sys.path.append(os.path.join(VENV, "lib", f"python3.{sys.version_info.minor}", "site-packages"))
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None

KUSTOMIZATIONS = ("deploy/k8s/base", "deploy/k8s/examples/central", "deploy/k8s/examples/sidecar")
KUBERNETES = "1.32"
OPERATOR_KINDS = {"PrometheusRule", "ServiceMonitor", "PodMonitor"}
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def size(text):
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]+)", str(text)).groups()
    return int(number) * UNITS[unit]


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text).group(1))


def render(path):
    done = subprocess.run(["kubectl", "kustomize", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents, kind):
    return [d for d in documents if d["kind"] == kind]


def pod_templates(documents):
    return [d["spec"]["template"] for d in documents if d["kind"] in ("StatefulSet", "Job", "Deployment", "DaemonSet")]


def containers(template):
    return template["spec"].get("initContainers", []) + template["spec"]["containers"]


def packd_of(template):
    return next(c for c in containers(template) if c["name"] == "packd")


def restricted_violations(template):
    """What the "restricted" Pod security standard would refuse in a Pod template."""
    found = []
    pod = template["spec"].get("securityContext", {})
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if template["spec"].get(field):
            found.append(field)
    for volume in template["spec"].get("volumes", []):
        if not {"configMap", "emptyDir", "secret", "persistentVolumeClaim", "projected", "downwardAPI", "csi", "ephemeral"} & volume.keys():
            found.append(f"volume {volume['name']}")
    for container in containers(template):
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False:
            found.append(f"{container['name']}: allowPrivilegeEscalation")
        if own.get("capabilities", {}).get("drop") != ["ALL"] or own["capabilities"].get("add"):
            found.append(f"{container['name']}: capabilities")
        if not own.get("runAsNonRoot", pod.get("runAsNonRoot")):
            found.append(f"{container['name']}: runAsNonRoot")
        if own.get("seccompProfile", pod.get("seccompProfile", {})).get("type") != "RuntimeDefault":
            found.append(f"{container['name']}: seccompProfile")
        if own.get("privileged"):
            found.append(f"{container['name']}: privileged")
    return found


def kubectl_version():
    """(major, minor) of kubectl; (0, 0) where there is none."""
    if not shutil.which("kubectl"):
        return 0, 0
    done = subprocess.run(["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=30)
    version = json.loads(done.stdout)["clientVersion"]
    return int(version["major"]), int(re.match(r"\d+", version["minor"]).group())


# Components came with 1.21, native sidecars with 1.28; Debian 12 packages 1.20.
if kubectl_version() < (1, 28):
    print(f"SKIP: Kubernetes manifests: kubectl 1.28 or later is needed to render them, found {kubectl_version()}")


@unittest.skipIf(kubectl_version() < (1, 28), "no kubectl, or one that is too old")
class KubernetesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as top:  # kustomize follows no links, and runfiles are some
            shutil.copytree("deploy/k8s", os.path.join(top, "deploy", "k8s"))
            cls.rendered = {path: render(os.path.join(top, path)) for path in KUSTOMIZATIONS}

    def each_template(self):
        for path, documents in self.rendered.items():
            for template in pod_templates(documents):
                yield path, documents, template

    def test_schemas(self):
        if kubernetes_validate is None:
            print("SKIP: kubernetes schemas: the PyPI package kubernetes-validate is not installed (tools/setup.sh test installs it)")
            self.skipTest("no kubernetes-validate")
        for path, documents in self.rendered.items():
            for document in documents:
                if document["kind"] not in OPERATOR_KINDS:
                    with self.subTest(path=path, kind=document["kind"]):
                        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        wrong = json.loads(json.dumps(of_kind(self.rendered["deploy/k8s/base"], "StatefulSet")[0]))
        wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, KUBERNETES, strict=True)

    def test_restricted_profile(self):
        for path, _, template in self.each_template():
            self.assertEqual(restricted_violations(template), [], path)
            for container in containers(template):
                self.assertTrue(container["securityContext"].get("readOnlyRootFilesystem"), f"{path}: {container['name']}")
            self.assertFalse(template["spec"].get("automountServiceAccountToken", True), path)
        loose = json.loads(json.dumps(next(self.each_template())[2]))
        del containers(loose)[0]["securityContext"]["capabilities"]
        self.assertEqual(len(restricted_violations(loose)), 1)

    def test_namespaces_of_the_examples_are_made(self):
        for path in KUSTOMIZATIONS[1:]:
            made = {d["metadata"]["name"] for d in of_kind(self.rendered[path], "Namespace")}
            self.assertEqual(made, {d["metadata"]["namespace"] for d in self.rendered[path] if d["kind"] != "Namespace"}, path)

    def test_sidecar_starts_first_and_stays(self):
        (template,) = pod_templates(self.rendered["deploy/k8s/examples/sidecar"])
        (init,) = template["spec"]["initContainers"]
        self.assertEqual((init["name"], init["restartPolicy"]), ("packd", "Always"))
        self.assertIn("preStop", init["lifecycle"])
        (trainer,) = template["spec"]["containers"]
        server = {e["name"]: e["value"] for e in trainer["env"]}["PACKD_SERVER"]
        mounts = {m["mountPath"]: m["name"] for m in trainer["volumeMounts"]}
        shared = {m["mountPath"]: m["name"] for m in init["volumeMounts"]}
        directory = os.path.dirname(server.removeprefix("unix:"))
        self.assertEqual(mounts[directory], shared[directory])
        volumes = {v["name"]: v for v in template["spec"]["volumes"]}
        self.assertIn("emptyDir", volumes[shared[directory]])
        self.assertIn("emptyDir", volumes[shared["/var/lib/packd"]])
        self.assertNotEqual(shared[directory], shared["/var/lib/packd"])

    def config(self, documents, template):
        volume = next(v for v in template["spec"]["volumes"] if "configMap" in v)
        (data,) = [d["data"] for d in of_kind(documents, "ConfigMap") if d["metadata"]["name"] == volume["configMap"]["name"]]
        return data["packd.yaml"]

    def test_configuration_fits_the_pod(self):
        for path, documents, template in self.each_template():
            text = self.config(documents, template)
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(text)
                file.flush()
                done = subprocess.run([harness.PACKD, "--config", file.name, "--check-config"], capture_output=True, text=True, timeout=30)
                self.assertEqual(done.returncode, 0, f"{path}: {done.stderr}")
            config = yaml.safe_load(text)
            packd = packd_of(template)
            mounts = {m["mountPath"] for m in packd["volumeMounts"] if not m.get("readOnly")}
            self.assertTrue(any(config["log"]["path"].startswith(m) for m in mounts), path)
            listeners = config["listen"] + config.get("listen_admin", []) + config.get("listen_health", [])
            for listener in listeners:
                if listener.startswith("unix:"):
                    self.assertIn(os.path.dirname(listener.removeprefix("unix:")), mounts, path)
            ports = {p["containerPort"] for p in packd["ports"]}
            tcp = {int(a.rpartition(":")[2]) for a in [*listeners, config["http"]] if not a.startswith("unix:")}
            self.assertEqual(ports, tcp, path)
            named = {p["name"] for p in packd["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in packd:
                    self.assertIn(packd[probe]["httpGet"]["port"], named, path)
            budget = size(config["memory"]["batches"]) + size(config["memory"]["ingest"]) + (64 << 20)
            self.assertLess(budget, size(packd["resources"]["limits"]["memory"]), path)
            command = packd["lifecycle"]["preStop"]["exec"]["command"]
            wait = seconds(command[command.index("--wait") + 1])
            self.assertLess(wait + seconds(config["drain"]), template["spec"]["terminationGracePeriodSeconds"], path)
            self.assertIn(command[command.index("--server") + 1], listeners, path)
            self.assertLess(size(config["log"]["max_bytes"]), self.log_volume_bytes(documents, template), path)

    def log_volume_bytes(self, documents, template):
        for stateful in of_kind(documents, "StatefulSet"):
            for claim in stateful["spec"]["volumeClaimTemplates"]:
                return size(claim["spec"]["resources"]["requests"]["storage"])
        return size(next(v["emptyDir"]["sizeLimit"] for v in template["spec"]["volumes"] if v["name"] == "packd-log"))

    def test_selectors_find_the_pod(self):
        for path in ("deploy/k8s/base", "deploy/k8s/examples/central"):
            documents = self.rendered[path]
            (template,) = pod_templates(documents)
            labels = template["metadata"]["labels"].items()
            selectors = [d["spec"]["selector"] for d in of_kind(documents, "Service")]
            selectors += [d["spec"]["selector"]["matchLabels"] for d in of_kind(documents, "PodDisruptionBudget")]
            selectors += [d["spec"]["podSelector"]["matchLabels"] for d in of_kind(documents, "NetworkPolicy")]
            selectors += [d["spec"]["selector"]["matchLabels"] for d in of_kind(documents, "StatefulSet")]
            self.assertGreaterEqual(len(selectors), 5)
            for selector in selectors:
                self.assertTrue(selector and selector.items() <= labels, f"{path}: {selector}")
            ports = {p["name"] for p in packd_of(template)["ports"]}
            for service in of_kind(documents, "Service"):
                self.assertEqual({p["targetPort"] for p in service["spec"]["ports"]}, ports)
            (stateful,) = of_kind(documents, "StatefulSet")
            headless = [d["metadata"]["name"] for d in of_kind(documents, "Service") if d["spec"].get("clusterIP") == "None"]
            self.assertEqual([stateful["spec"]["serviceName"]], headless)

    def test_monitors_point_at_ports_and_labels(self):
        documents = self.rendered["deploy/k8s/examples/central"]
        (monitor,) = of_kind(documents, "ServiceMonitor")
        services = of_kind(documents, "Service")
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        self.assertTrue(all(wanted <= s["metadata"]["labels"].items() for s in services))
        self.assertIn(monitor["spec"]["endpoints"][0]["port"], [p["name"] for p in services[0]["spec"]["ports"]])
        keep = monitor["spec"]["endpoints"][0]["relabelings"][0]["regex"]
        self.assertEqual([s["metadata"]["name"] for s in services if re.fullmatch(keep, s["metadata"]["name"])], ["packd"])
        documents = self.rendered["deploy/k8s/examples/sidecar"]
        (monitor,) = of_kind(documents, "PodMonitor")
        (template,) = pod_templates(documents)
        self.assertLessEqual(monitor["spec"]["selector"]["matchLabels"].items(), template["metadata"]["labels"].items())
        self.assertIn(monitor["spec"]["podMetricsEndpoints"][0]["port"], [p["name"] for p in packd_of(template)["ports"]])

    def test_alerts_are_those_of_prometheus(self):
        (rule,) = of_kind(self.rendered["deploy/k8s/examples/central"], "PrometheusRule")
        with open("deploy/prometheus/rules.yaml") as file:
            self.assertEqual(rule["spec"]["groups"], yaml.safe_load(file)["groups"], "run deploy/prometheus/prometheus_rule.py")

    def test_commands_of_the_manifests_work(self):
        """The preStop hook and the example trainer's script, against a real daemon."""
        (template,) = pod_templates(self.rendered["deploy/k8s/examples/sidecar"])
        script = template["spec"]["containers"][0]["args"][0]
        config = yaml.safe_load(self.config(self.rendered["deploy/k8s/examples/sidecar"], template))
        with harness.Daemon(feeds=config["feeds"]) as packd:
            environment = {**os.environ, "PACKD_SERVER": packd.address, "PATH": os.path.dirname(harness.PACKCTL) + ":" + os.environ["PATH"]}
            done = subprocess.run(["/bin/sh", "-ec", script], env=environment, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            (feed,) = packd.status()["feeds"]
            self.assertEqual(int(feed["ingest"]["samples"]), 20000)
            hook = packd_of(template)["lifecycle"]["preStop"]["exec"]["command"]
            self.assertEqual(hook[:2], ["packctl", "--server"])
            packd.packctl(*hook[3:])
            self.assertEqual(packd.http("/readyz")[0], 503)


class StartupTest(unittest.TestCase):
    """Of the files as they are: this needs no kubectl."""

    def test_a_long_replay_is_not_killed(self):
        """Until the log is replayed packd answers over HTTP alone: /livez at once, /readyz with 503."""
        with open("deploy/k8s/base/statefulset.yaml") as file:
            (packd,) = containers(yaml.safe_load(file)["spec"]["template"])
        with open("deploy/k8s/components/sidecar/sidecar.yaml") as file:
            (sidecar,) = yaml.safe_load(file)["spec"]["template"]["spec"]["initContainers"]
        self.assertEqual(packd["startupProbe"]["httpGet"]["path"], "/livez")
        for container in (packd, sidecar):
            probe = container["startupProbe"]
            self.assertIn(probe["httpGet"]["port"], [p["name"] for p in container["ports"]])
            if probe["httpGet"]["path"] != "/livez":
                self.assertGreaterEqual(probe["periodSeconds"] * probe["failureThreshold"], 1800, "half an hour for a replay")


if __name__ == "__main__":
    unittest.main()
