package chaos

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"
)

// What clients do to a setting, an atomic register of one number.
type (
	settingInput struct {
		write bool
		value int64 // written
	}
	settingOutput struct{ value int64 } // read
)

// settingModel says: a read shows the last write.
func settingModel(initial int64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return initial },
		Step: func(state, input, output any) (bool, any) {
			in := input.(settingInput)
			if in.write {
				return true, in.value
			}
			return state.(int64) == output.(settingOutput).value, state
		},
		DescribeOperation: func(input, output any) string {
			if in := input.(settingInput); in.write {
				return fmt.Sprintf("set %d", in.value)
			}
			return fmt.Sprintf("get → %d", output.(settingOutput).value)
		},
	}
}

// nameOp is what clients do to the name of a VM.
type nameOp int

const (
	nameTaken  nameOp = iota // a launch got id
	nameInUse                // a launch was refused, for the name is in use
	nameSeen                 // a read shows id, or with no id that there is none
	nameFreed                // the VM id was deleted
	nameMaybe                // a launch that came to nothing, or to another VM, may have held the name meanwhile
	nameUnsure               // … and may have let it go
	nameMayEnd               // a host lost its VMs: the name may be free, once
)

type nameInput struct {
	op nameOp
	id string
}

// someone holds a name in a way that no client was told of. The id is added once a read has shown it.
const someone = "?"

// nameModel says: a name is held by one VM from its launch to its end. The state is the holder's id, empty for none.
func nameModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{""} },
		Step: func(state, input, _ any) []any {
			var next []any
			for _, s := range nextNames(state.(string), input.(nameInput)) {
				next = append(next, s)
			}
			return next
		},
		Equal:             func(a, b any) bool { return a == b },
		DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
	}
	return model.ToModel()
}

func nextNames(holder string, in nameInput) []string {
	hidden := strings.HasPrefix(holder, someone)
	switch in.op {
	case nameTaken:
		if holder == "" || holder == someone+in.id || holder == someone {
			return []string{in.id}
		}
	case nameInUse:
		if holder != "" {
			return []string{holder}
		}
	case nameSeen:
		switch {
		case in.id == holder, hidden && in.id != "" && holder == someone+in.id:
			return []string{holder}
		case holder == someone && in.id != "":
			return []string{someone + in.id}
		}
	case nameFreed:
		if holder == in.id || holder == someone+in.id {
			return []string{""}
		}
		return []string{holder}
	case nameMaybe:
		if holder == "" {
			return []string{"", someone}
		}
		return []string{holder}
	case nameUnsure:
		if hidden {
			return []string{holder, ""}
		}
		return []string{holder}
	case nameMayEnd:
		if holder != "" {
			return []string{holder, ""}
		}
		return []string{""}
	}
	return nil
}
