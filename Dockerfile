# One image for Ray's head and workers, for the submitter and for MLflow, so that Ray and Python are
# the same everywhere. torch's wheels bring CUDA; the nodes bring the driver. See docs/kubernetes.md.
# `--target slim` ends before the compilers: enough for MLflow, the submitter, reports and exports.
# The digest is that of the index of all platforms, under which the tag stood when it was looked up
FROM python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1 AS slim

RUN useradd --uid 1000 --create-home plimsoll

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore

# From what changes least to what changes most, each a layer of its own. Every file by its hash. Into
# the system's Python, since KubeRay starts Ray by a login shell, which would forget the PATH of a
# virtual environment.
WORKDIR /opt/plimsoll
COPY image.lock ./
RUN pip install --require-hashes --requirement image.lock
COPY pyproject.toml README.md LICENSE ./
COPY search_spaces search_spaces
COPY workers workers
COPY orchestrator orchestrator
COPY plimsoll plimsoll
RUN pip install --no-deps --no-build-isolation . \
    && bash -lc 'command -v ray plimsoll mlflow'

ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /home/plimsoll
# by number, so that Kubernetes can see that it is not root
USER 1000:1000
CMD ["plimsoll", "--help"]

# g++ for what torch.compile and DeepSpeed compile when it is first used, libaio for offload to NVMe,
# wget since older KubeRay probes Ray with it
FROM slim
USER 0:0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libaio-dev wget \
    && rm -rf /var/lib/apt/lists/*
USER 1000:1000
