"""The Kubernetes manifests: built, valid by the published schemas, and what they promise."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.settings import Settings

from . import shapes
from .kustomize import build_here
from .shapes import BUILDS, JOBS, KUBERAY, Object, cluster, groups, objects

KUBERNETES = "1.34"


def validate(one: Object) -> None:
    """Check an object against the schema of its kind. Raises: an error naming the field."""
    if one["apiVersion"] == "ray.io/v1":
        shapes.crd(one["kind"]).validate(one)
        return
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(one, KUBERNETES, strict=True)


@pytest.mark.parametrize("build", BUILDS)
def test_every_object_fits_its_schema(build: str) -> None:
    found = objects(build)
    assert {one["kind"] for one in found} >= {"RayCluster", "PodDisruptionBudget", "ConfigMap"}
    for one in found:
        validate(one)


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.name)
def test_every_job_fits_its_schema_and_kuberays_rules(file: Path) -> None:
    job = yaml.safe_load(file.read_text())
    validate(job)
    spec = job["spec"]
    # KubeRay's operator refuses these beside a cluster that is there already.
    assert spec["clusterSelector"] == {"ray.io/cluster": cluster("base")["metadata"]["name"]}
    assert not spec.get("backoffLimit")
    assert not spec["shutdownAfterJobFinishes"]
    assert "ttlSecondsAfterFinished" not in spec


@pytest.mark.parametrize(
    ("kind", "break_it"),
    [
        ("RayCluster", lambda one: one["spec"].update(headGroupSpecs={})),
        ("RayCluster", lambda one: one["spec"]["authOptions"].update(mode="maybe")),
        ("RayCluster", lambda one: _container(one).update(livenessprobe={})),
        ("PodDisruptionBudget", lambda one: one["spec"].update(maxUnavailabel=1)),
        ("NetworkPolicy", lambda one: one["spec"].update(policyTypes="Ingress")),
        ("PersistentVolumeClaim", lambda one: one["spec"].pop("resources") and None),
    ],
)
def test_the_check_sees_mistakes(kind: str, break_it: Any) -> None:
    one = copy.deepcopy(next(one for one in objects("base") if one["kind"] == kind))
    validate(one)
    break_it(one)
    if kind == "PersistentVolumeClaim":
        one["spec"]["resourses"] = {}
    with pytest.raises(Exception, match=r"."):
        validate(one)


def _container(one: Object) -> Object:
    found: Object = one["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize("build", BUILDS)
def test_the_builder_here_means_what_kubectl_means(build: str) -> None:
    if not (shutil.which("kubectl") or shutil.which("kustomize")):
        pytest.skip("neither kubectl nor kustomize is installed")

    def keyed(found: list[Object]) -> dict[tuple[str, str], Object]:
        return {(one["kind"], one["metadata"]["name"]): one for one in found}

    assert keyed(build_here(KUBERAY / build)) == keyed(objects(build))


@pytest.mark.parametrize("build", BUILDS)
def test_the_token_is_asked_for_and_stands_nowhere(build: str) -> None:
    found = objects(build)
    assert cluster(build)["spec"]["authOptions"]["mode"] == "token"
    assert not [one for one in found if one["kind"] == "Secret"], "KubeRay makes it"
    for _, _, container in groups(cluster(build)):
        assert not [env for env in container.get("env", []) if "AUTH" in env["name"]]


@pytest.mark.parametrize("build", BUILDS)
def test_settings_are_settings(build: str) -> None:
    (config,) = [one for one in objects(build) if one["kind"] == "ConfigMap"]
    prefix = "SESSIONS_ACTOR_"
    given = {k.removeprefix(prefix).lower(): v for k, v in config["data"].items() if prefix in k}
    if "replica_url" not in Settings.model_fields:
        given = {k: v for k, v in given.items() if k not in ("replica_url", "durability")}
    Settings(**given)
    for _, _, container in groups(cluster(build)):
        assert {"configMapRef": {"name": config["metadata"]["name"]}} in container["envFrom"]
        (mount,) = [one for one in container["volumeMounts"] if one["name"] == "sessions"]
        assert Path(given["storage_root"]).is_relative_to(mount["mountPath"])
        assert given["storage_root"] != mount["mountPath"], "a folder of our own, private to us"


@pytest.mark.parametrize("build", BUILDS)
def test_a_pod_is_probed_bounded_and_unprivileged(build: str) -> None:
    for _, group, container in groups(cluster(build)):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] > 0
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        limits = container["resources"]["limits"]
        assert limits["memory"] == container["resources"]["requests"]["memory"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"] == {"path": "/api/healthz", "port": 52365}
        assert ":" in container["image"]
        assert not container["image"].endswith(":latest")


@pytest.mark.parametrize("build", BUILDS)
def test_a_worker_is_emptied_before_it_ends_and_a_head_takes_nothing(build: str) -> None:
    spec = cluster(build)["spec"]
    workers = spec.get("workerGroupSpecs", [])
    head = spec["headGroupSpec"]["rayStartParams"]
    assert (head.get("num-cpus") == "0") == bool(workers)
    for group in workers:
        (container,) = group["template"]["spec"]["containers"]
        hook = container["lifecycle"]["preStop"]["exec"]["command"]
        assert hook[-2:] == ["drain", "self"]
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] >= 300
    start = _container(cluster(build))["lifecycle"]["postStart"]["exec"]["command"]
    assert "--detach" in start


def _claims(group: Object) -> list[str]:
    volumes = group["template"]["spec"]["volumes"]
    return [
        one["persistentVolumeClaim"]["claimName"]
        for one in volumes
        if "persistentVolumeClaim" in one
    ]


@pytest.mark.parametrize("build", BUILDS)
def test_a_disk_has_one_pod_and_outlives_it_or_is_replicated(build: str) -> None:
    found = cluster(build)
    made = {one["metadata"]["name"] for one in objects(build) if "Claim" in one["kind"]}
    used: list[str] = []
    (config,) = [one for one in objects(build) if one["kind"] == "ConfigMap"]
    replicated = config["data"].get("SESSIONS_ACTOR_DURABILITY") == "replicated"
    for name, group, _ in groups(found):
        claims = _claims(group)
        used += claims
        if claims:
            assert group.get("replicas", 1) == group.get("maxReplicas", 1) == 1, name
        else:
            assert replicated, f"{name}: its disk goes with the pod"
    assert sorted(used) == sorted(made), "a volume each, none without a pod"
    storage = found["spec"]["gcsFaultToleranceOptions"]["storage"]
    assert storage["claimName"] in _claims(found["spec"]["headGroupSpec"])


@pytest.mark.parametrize("build", BUILDS)
def test_budget_and_policy_mean_this_clusters_pods(build: str) -> None:
    name = cluster(build)["metadata"]["name"]
    (budget,) = [one for one in objects(build) if one["kind"] == "PodDisruptionBudget"]
    assert budget["spec"]["selector"]["matchLabels"] == {"ray.io/cluster": name}
    (policy,) = [one for one in objects(build) if one["kind"] == "NetworkPolicy"]
    assert policy["spec"]["podSelector"]["matchLabels"] == {"ray.io/cluster": name}


def test_one_version_of_ray_everywhere() -> None:
    pins = (shapes.DEPLOY / "docker/constraints.txt").read_text().splitlines()
    assert f"ray=={cluster('base')['spec']['rayVersion']}" in pins


def test_the_schemas_are_those_named() -> None:
    folder = Path(shapes.__file__).parent / "crds"
    assert "Apache License" in (folder / "NOTICE.md").read_text()
    for kind in ("RayCluster", "RayJob"):
        properties = shapes.crd(kind).schema["properties"]
        assert {"apiVersion", "kind", "spec", "status"} <= set(properties)
