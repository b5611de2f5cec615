struct bpf_perf_event_data;
