# One image for Ray's head and workers, for the submitter and for MLflow, so that Ray and Python are
# the same everywhere. torch's wheels bring CUDA; the nodes bring the driver. See k8s/README.md.
FROM python:3.11.13-slim-bookworm

# g++ for what torch.compile and DeepSpeed compile when it is first used, libaio for offload to NVMe,
# wget since older KubeRay probes Ray with it
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libaio-dev wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home plimsoll

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore

# From what changes least to what changes most, each a layer of its own. As in the Makefile, torch goes
# first and alone. Into the system's Python, since KubeRay starts Ray by a login shell, which would
# forget the PATH of a virtual environment.
WORKDIR /opt/plimsoll
COPY constraints.txt ./
RUN pip install --constraint constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
RUN pip install --constraint constraints.txt '.[all]'
COPY search_spaces search_spaces
COPY workers workers
COPY orchestrator orchestrator
COPY plimsoll plimsoll
RUN pip install --constraint constraints.txt --no-deps --force-reinstall . \
    && bash -lc 'command -v ray plimsoll mlflow'

ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /home/plimsoll
# by number, so that Kubernetes can see that it is not root
USER 1000:1000
CMD ["plimsoll", "--help"]
