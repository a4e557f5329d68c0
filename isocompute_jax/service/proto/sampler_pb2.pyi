from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class InFlight(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IN_FLIGHT_ABORT: _ClassVar[InFlight]
    IN_FLIGHT_WAIT: _ClassVar[InFlight]
    IN_FLIGHT_CONTINUE: _ClassVar[InFlight]
    IN_FLIGHT_RECOMPUTE: _ClassVar[InFlight]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
IN_FLIGHT_ABORT: InFlight
IN_FLIGHT_WAIT: InFlight
IN_FLIGHT_CONTINUE: InFlight
IN_FLIGHT_RECOMPUTE: InFlight

class SampleRequest(_message.Message):
    __slots__ = ("group_id", "problem_id", "seed", "step", "prompt_tokens", "group_size", "temperature", "top_p", "max_tokens", "stop_token_ids", "session", "policy_version", "first_rollout", "turn", "budgets", "top_k")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    problem_id: str
    seed: int
    step: int
    prompt_tokens: _containers.RepeatedScalarFieldContainer[int]
    group_size: int
    temperature: float
    top_p: float
    max_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    session: str
    policy_version: int
    first_rollout: int
    turn: int
    budgets: _containers.RepeatedScalarFieldContainer[int]
    top_k: int
    def __init__(self, group_id: _Optional[str] = ..., problem_id: _Optional[str] = ..., seed: _Optional[int] = ..., step: _Optional[int] = ..., prompt_tokens: _Optional[_Iterable[int]] = ..., group_size: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., max_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., session: _Optional[str] = ..., policy_version: _Optional[int] = ..., first_rollout: _Optional[int] = ..., turn: _Optional[int] = ..., budgets: _Optional[_Iterable[int]] = ..., top_k: _Optional[int] = ...) -> None: ...

class VersionSpan(_message.Message):
    __slots__ = ("version", "length")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    version: int
    length: int
    def __init__(self, version: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("index", "tokens", "logprobs", "finish_reason", "spans", "experts", "expert_layers", "experts_per_token", "support", "support_width")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    EXPERT_LAYERS_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    index: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    finish_reason: FinishReason
    spans: _containers.RepeatedCompositeFieldContainer[VersionSpan]
    experts: bytes
    expert_layers: int
    experts_per_token: int
    support: bytes
    support_width: int
    def __init__(self, index: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., spans: _Optional[_Iterable[_Union[VersionSpan, _Mapping]]] = ..., experts: _Optional[bytes] = ..., expert_layers: _Optional[int] = ..., experts_per_token: _Optional[int] = ..., support: _Optional[bytes] = ..., support_width: _Optional[int] = ...) -> None: ...

class SampleReply(_message.Message):
    __slots__ = ("completions",)
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    completions: _containers.RepeatedCompositeFieldContainer[Completion]
    def __init__(self, completions: _Optional[_Iterable[_Union[Completion, _Mapping]]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Box(_message.Message):
    __slots__ = ("tensor", "offset", "shape")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    tensor: int
    offset: _containers.RepeatedScalarFieldContainer[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tensor: _Optional[int] = ..., offset: _Optional[_Iterable[int]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class WeightsHeader(_message.Message):
    __slots__ = ("session", "version", "tensors", "in_flight", "sender", "senders", "base", "keep")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SENDERS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    session: str
    version: int
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    in_flight: InFlight
    sender: int
    senders: int
    base: int
    keep: bool
    def __init__(self, session: _Optional[str] = ..., version: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., in_flight: _Optional[_Union[InFlight, str]] = ..., sender: _Optional[int] = ..., senders: _Optional[int] = ..., base: _Optional[int] = ..., keep: _Optional[bool] = ...) -> None: ...

class WeightChunk(_message.Message):
    __slots__ = ("box", "data", "checksum", "gaps")
    BOX_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    box: Box
    data: bytes
    checksum: int
    gaps: bytes
    def __init__(self, box: _Optional[_Union[Box, _Mapping]] = ..., data: _Optional[bytes] = ..., checksum: _Optional[int] = ..., gaps: _Optional[bytes] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("path", "size", "checksum", "boxes", "starts")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    BOXES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    path: str
    size: int
    checksum: int
    boxes: _containers.RepeatedCompositeFieldContainer[Box]
    starts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, path: _Optional[str] = ..., size: _Optional[int] = ..., checksum: _Optional[int] = ..., boxes: _Optional[_Iterable[_Union[Box, _Mapping]]] = ..., starts: _Optional[_Iterable[int]] = ...) -> None: ...

class WeightsEnd(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class DeviceWeights(_message.Message):
    __slots__ = ("transfer",)
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    def __init__(self, transfer: _Optional[int] = ...) -> None: ...

class UpdateWeightsRequest(_message.Message):
    __slots__ = ("header", "chunk", "manifest", "end", "device")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    header: WeightsHeader
    chunk: WeightChunk
    manifest: Manifest
    end: WeightsEnd
    device: DeviceWeights
    def __init__(self, header: _Optional[_Union[WeightsHeader, _Mapping]] = ..., chunk: _Optional[_Union[WeightChunk, _Mapping]] = ..., manifest: _Optional[_Union[Manifest, _Mapping]] = ..., end: _Optional[_Union[WeightsEnd, _Mapping]] = ..., device: _Optional[_Union[DeviceWeights, _Mapping]] = ...) -> None: ...

class UpdateWeightsReply(_message.Message):
    __slots__ = ("version", "apply_s", "paused_s")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLY_S_FIELD_NUMBER: _ClassVar[int]
    PAUSED_S_FIELD_NUMBER: _ClassVar[int]
    version: int
    apply_s: float
    paused_s: float
    def __init__(self, version: _Optional[int] = ..., apply_s: _Optional[float] = ..., paused_s: _Optional[float] = ...) -> None: ...

class OpenTransferRequest(_message.Message):
    __slots__ = ("transfer", "unique_id", "world", "tensors", "buckets")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_ID_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    unique_id: bytes
    world: int
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    buckets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, transfer: _Optional[int] = ..., unique_id: _Optional[bytes] = ..., world: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., buckets: _Optional[_Iterable[int]] = ...) -> None: ...

class OpenTransferReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("tensors", "session", "release")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    tensors: bool
    session: str
    release: bool
    def __init__(self, tensors: _Optional[bool] = ..., session: _Optional[str] = ..., release: _Optional[bool] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_model_len", "max_group_size", "max_groups", "max_message_bytes")
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_GROUPS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    max_model_len: int
    max_group_size: int
    max_groups: int
    max_message_bytes: int
    def __init__(self, max_model_len: _Optional[int] = ..., max_group_size: _Optional[int] = ..., max_groups: _Optional[int] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...

class Devices(_message.Message):
    __slots__ = ("kind", "count")
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    count: int
    def __init__(self, kind: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("model", "engine", "engine_version", "incarnation", "host_id", "session", "version", "serving", "running_groups", "waiting_groups", "tokens_generated", "uptime_s", "limits", "tensors", "vocab_size", "taken", "routing", "turns", "lacks", "no_token_versions", "devices", "draining", "nccl", "support", "base")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_GROUPS_FIELD_NUMBER: _ClassVar[int]
    WAITING_GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_GENERATED_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    LACKS_FIELD_NUMBER: _ClassVar[int]
    NO_TOKEN_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    NCCL_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    model: str
    engine: str
    engine_version: str
    incarnation: str
    host_id: str
    session: str
    version: int
    serving: bool
    running_groups: int
    waiting_groups: int
    tokens_generated: int
    uptime_s: float
    limits: Limits
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    vocab_size: int
    taken: bool
    routing: bool
    turns: bool
    lacks: _containers.RepeatedScalarFieldContainer[str]
    no_token_versions: bool
    devices: Devices
    draining: bool
    nccl: str
    support: bool
    base: str
    def __init__(self, model: _Optional[str] = ..., engine: _Optional[str] = ..., engine_version: _Optional[str] = ..., incarnation: _Optional[str] = ..., host_id: _Optional[str] = ..., session: _Optional[str] = ..., version: _Optional[int] = ..., serving: _Optional[bool] = ..., running_groups: _Optional[int] = ..., waiting_groups: _Optional[int] = ..., tokens_generated: _Optional[int] = ..., uptime_s: _Optional[float] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., vocab_size: _Optional[int] = ..., taken: _Optional[bool] = ..., routing: _Optional[bool] = ..., turns: _Optional[bool] = ..., lacks: _Optional[_Iterable[str]] = ..., no_token_versions: _Optional[bool] = ..., devices: _Optional[_Union[Devices, _Mapping]] = ..., draining: _Optional[bool] = ..., nccl: _Optional[str] = ..., support: _Optional[bool] = ..., base: _Optional[str] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("group_ids",)
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("cancelled",)
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    cancelled: int
    def __init__(self, cancelled: _Optional[int] = ...) -> None: ...
