package fsm

// admitReplica takes one use of a join token for a replica that wants to become a member, or the operator's word. Its
// value is the *Operation.
func (t *tx) admitReplica(c AdmitReplica) (any, error) {
	if !c.Operator {
		if err := t.useToken(c.TokenHash, "replica", c.Name); err != nil {
			return nil, err
		}
	}
	op, err := t.remember(Operation{Ref: c.Name})
	if err != nil {
		return nil, err
	}
	t.log(t.env.Actor, "POST /fleet/cluster/replicas", c.Name, "", "ok", "cluster_addr", c.Addr)
	return op, nil
}
