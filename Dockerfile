# docker build -t quire .                     PyTorch's CPU builds
# docker build -t quire --build-arg TORCH=cuda .
# docker run -p 8000:8000 -v quire-models:/models quire Qwen/Qwen2.5-0.5B-Instruct
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
# Of a compiler Debian keeps the newest version alone.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement /source/locks/build.txt \
 && /source/scripts/wheels.sh python /wheels

FROM python:${PYTHON}-slim
ARG TORCH=cpu
ARG TORCH_VERSION=2.13.0
# A layer of its own: it is most of the image, and changes least.
RUN if [ "${TORCH}" = cpu ]; then \
      export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu; fi \
 && pip install --no-cache-dir "torch==${TORCH_VERSION}"
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    --mount=type=bind,from=build,source=/source/locks,target=/locks \
    pip install --no-cache-dir --no-deps --require-hashes --requirement /locks/serve.txt \
 && pip install --no-cache-dir --no-deps /wheels/*.whl \
 && pip check
# By its number, which Kubernetes can see is not root's.
RUN useradd --uid 10001 --create-home quire && install --directory --owner=quire /models
USER 10001
ENV HF_HOME=/models
VOLUME /models
EXPOSE 8000
# A model may take minutes to load, and to download on the first start.
HEALTHCHECK --start-period=30m --interval=30s --timeout=5s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
# As process 1 it takes SIGTERM itself, lets what is running end, and leaves.
ENTRYPOINT ["quire", "serve", "--host", "0.0.0.0"]
