"""Registry of systems: key -> (module, class). Imported lazily so that one broken package harms no other."""

import importlib

SYSTEMS = {
    "floor": ("floor", "Floor"),
    "hyperpod": ("hyperpod", "Hyperpod"),
    "hyperpod_overlap": ("hyperpod", "HyperpodOverlap"),
    "torch_save": ("torch_native", "TorchSave"),
    "safetensors": ("torch_native", "SafeTensors"),
    "dcp_sync": ("torch_native", "DcpSync"),
    "dcp_sync_2t": ("torch_native", "DcpSync2"),
    "dcp_thread": ("torch_native", "DcpAsyncThread"),
    "dcp_thread_cached": ("torch_native", "DcpAsyncThreadCached"),
    "dcp_thread_bg": ("torch_native", "DcpAsyncThreadBg"),
    "dcp_process": ("torch_native", "DcpAsyncProcess"),
    "dcp_process_shared": ("torch_native", "DcpAsyncProcessShared"),
    "ts_take": ("snapshot", "TorchSnapshotTake"),
    "ts_async": ("snapshot", "TorchSnapshotAsync"),
    "dlrover_disk": ("dlrover_", "DlroverDdpDisk"),
    "dlrover_memory": ("dlrover_", "DlroverDdpMemory"),
    "dlrover_fsdp_engine": ("dlrover_", "DlroverFsdpEngine"),
    "dlrover_fsdp1": ("dlrover_", "DlroverFsdp1"),
    "nvrx_fork": ("nvrx", "NvrxFork"),
}


def load_adapter_class(key):
    mod, cls = SYSTEMS[key]
    return getattr(importlib.import_module(f"adapters.{mod}"), cls)
