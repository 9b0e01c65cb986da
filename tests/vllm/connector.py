# SPDX-License-Identifier: Apache-2.0
"""A KV connector that moves nothing, but whose workers have to say when they have sent a request.

The scheduler keeps a finished request until each rank of each stage has said so.
"""

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)


class SendsNothing(KVConnectorBase_V1):
    # In the workers.

    def start_load_kv(self, forward_context, **options) -> None:
        pass

    def wait_for_layer_load(self, layer_name) -> None:
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **options) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_finished(self, finished_req_ids):
        return set(finished_req_ids) or None, None

    # In the scheduler.

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens) -> None:
        pass

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def request_finished(self, request, block_ids):
        return True, None
