# The image of every part of a run. compose.yaml starts the parts, docs/deploy.md says how.
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.12-slim
# What the image can do: the names of extras, see docs/plugins.md.
ARG EXTRAS=dashboard,openai,torch
# For torch without CUDA, a fifth of the size: https://download.pytorch.org/whl/cpu
ARG PIP_EXTRA_INDEX_URL
COPY --from=build /dist /dist
RUN pip install --no-cache-dir "$(echo /dist/*.whl)[$EXTRAS]" \
    && useradd --uid 1000 --create-home agl \
    && install --directory --owner=agl /runs
USER 1000
WORKDIR /program
ENTRYPOINT ["agl"]
CMD ["--help"]
