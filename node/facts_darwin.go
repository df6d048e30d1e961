package node

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// hostFacts asks the kernel by sysctl.
type hostFacts struct{}

func (hostFacts) BootID() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "unknown"
	}
	return id
}

func (hostFacts) Uptime() time.Duration { return clockReading(unix.CLOCK_MONOTONIC_RAW) }

func (hostFacts) Memory() (api.HostMemory, error) {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return api.HostMemory{}, factsError("memory", err)
	}
	page, err := unix.SysctlUint32("vm.pagesize")
	if err != nil {
		return api.HostMemory{}, factsError("memory", err)
	}
	var pages uint64
	for _, name := range [...]string{"vm.page_free_count", "vm.page_speculative_count", "vm.page_purgeable_count", "vm.page_pageable_external_count"} {
		n, err := unix.SysctlUint32(name)
		if err != nil {
			return api.HostMemory{}, factsError("memory", err)
		}
		pages += uint64(n)
	}
	out := api.HostMemory{MemTotalMiB: int64(total >> 20), MemAvailableMiB: min(int64(total>>20), int64(pages*uint64(page)>>20))}
	level, err := unix.SysctlUint32("kern.memorystatus_vm_pressure_level")
	if err != nil {
		return api.HostMemory{}, factsError("memory pressure", err)
	}
	words := map[uint32]string{1: api.PressureNormal, 2: api.PressureWarn, 4: api.PressureCritical}
	if word, ok := words[level]; ok {
		out.PressureLevel = &word
	}
	return out, nil
}
