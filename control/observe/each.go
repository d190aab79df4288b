package observe

import "context"

// ServiceStreamer is an optional interface of an [Observer] that returns services one by one, so
// that they are never all in memory.
type ServiceStreamer interface {
	// EachService calls head once, with all fields except the services, then each for every
	// service of [Observer.Services], in its order. It ends with the first error of either. A service is valid until each returns. It returns [Services.Next].
	EachService(ctx context.Context, q ServiceQuery, head func(*Services) error, each func(*Service) error) (next string, err error)
}

// EachService is [ServiceStreamer.EachService] for any observer.
func EachService(ctx context.Context, o Observer, q ServiceQuery, head func(*Services) error, each func(*Service) error) (next string, err error) {
	if s, ok := o.(ServiceStreamer); ok {
		return s.EachService(ctx, q, head, each)
	}
	answer, err := o.Services(ctx, q)
	if err != nil {
		return "", err
	}
	besides := *answer
	besides.Services = nil
	if err := head(&besides); err != nil {
		return "", err
	}
	for i := range answer.Services {
		if err := each(&answer.Services[i]); err != nil {
			return "", err
		}
	}
	return answer.Next, nil
}
