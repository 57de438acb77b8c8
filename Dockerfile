# docker build -t quire .                     PyTorch's CPU builds
# docker build -t quire --build-arg TORCH=cuda .
# docker run -p 8000:8000 -v quire-models:/models quire Qwen/Qwen2.5-0.5B-Instruct
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN QUIRE_ISAS=all pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source /source/cluster /source/lab

FROM python:${PYTHON}-slim
ARG TORCH=cpu
ARG TORCH_VERSION=2.13.0
# A layer of its own: it is most of the image, and changes least.
RUN pip install --no-cache-dir "torch==${TORCH_VERSION}" \
    $(test "${TORCH}" = cuda || echo "--extra-index-url https://download.pytorch.org/whl/cpu")
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    --mount=type=bind,from=build,source=/source/locks,target=/locks \
    pip install --no-cache-dir --no-deps --require-hashes --requirement /locks/serve.txt \
 && pip install --no-cache-dir --no-deps /wheels/*.whl \
 && pip check
RUN useradd --create-home quire && install --directory --owner=quire /models
USER quire
ENV HF_HOME=/models
VOLUME /models
EXPOSE 8000
# A model may take minutes to load, and to download on the first start.
HEALTHCHECK --start-period=30m --interval=30s --timeout=5s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
# As process 1 it takes SIGTERM itself, lets what is running end, and leaves.
ENTRYPOINT ["quire", "serve", "--host", "0.0.0.0"]
